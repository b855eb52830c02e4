#pragma once

#include <cstdint>
#include <string>

namespace spillway::metrics {

/// Takes back what a resumed run will write again: removes every line of a metrics file whose
/// `step` is larger than `last_step`, `eval` lines of `last_step` itself when its evaluation will
/// be made again, and a last line that a killed process left unfinished. Lines without a step
/// (`run`) stay. The file is replaced in one rename, so a crash leaves the old one or the new one.
/// No file: nothing to do. Returns the number of lines removed. Throws DataError naming file and
/// line number for a line in the middle that is no JSON object, or when the file cannot be read or
/// written.
int64_t cut_after(const std::string& path, int64_t last_step, bool evaluation_again = false);

}  // namespace spillway::metrics
