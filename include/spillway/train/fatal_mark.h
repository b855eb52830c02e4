#pragma once

#include <string>

namespace spillway::train {

/// The file `fatal` in a run directory: the first rank that fails makes it, by exclusive create,
/// and is the one that prints. True when this rank made it (or when the directory cannot be
/// written: better said twice than never).
bool claim_fatal_mark(const std::string& run_dir, int rank, const std::string& message);
void remove_fatal_mark(const std::string& run_dir);

}  // namespace spillway::train
