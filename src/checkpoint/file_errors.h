#pragma once
// What is wrong with a file of a checkpoint: exit code 4, the file named.

#include <string>

#include "spillway/checkpoint/safetensors.h"
#include "spillway/core/error.h"

namespace spillway::checkpoint {

[[noreturn]] inline void fail_file(const std::string& path, const std::string& why) {
  throw DataError(str("checkpoint file \"", path, "\": ", why));
}

[[noreturn]] inline void fail_tensor(const std::string& path, const std::string& tensor,
                                     const std::string& why) {
  fail_file(path, str("tensor \"", tensor, "\": ", why));
}

}  // namespace spillway::checkpoint
