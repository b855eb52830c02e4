#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/checkpoint/safetensors.h"

namespace spillway::checkpoint {

/// The longest header that the reference library reads.
inline constexpr int64_t kMaxHeaderBytes = 100'000'000;
inline constexpr int64_t kLengthBytes = 8;
inline constexpr int64_t kHeaderAlignment = 8;

/// The header's JSON, not padded, of tensors in the order of their data.
std::string header_text(const std::vector<NamedTensor>& tensors, const Metadata& metadata);

struct Header {
  std::vector<SafetensorsFile::Entry> entries;  ///< in the order of the data
  Metadata metadata;
};
/// `data_begin`, `file_bytes`: where the tensors' bytes lie in the file. Throws DataError.
Header parse_header(const std::string& path, std::string_view text, int64_t data_begin,
                    int64_t file_bytes);

}  // namespace spillway::checkpoint
