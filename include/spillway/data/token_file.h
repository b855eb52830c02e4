#pragma once
// Token files read in place.

#include <cstdint>
#include <string>
#include <vector>

#include "spillway/data/config.h"
#include "spillway/data/mapped_file.h"

namespace spillway::data {

/// Throws ConfigError naming `data.format` unless the format can be read.
void check_format(TokenFormat format);

/// The tokens of several files as one stream: begin + ids of file 0 + end, begin + ids of file 1 +
/// end, ... The files stay mapped; memory grows with what is read, not with their size. Move-only.
class TokenStream {
 public:
  /// Maps every file. DataError naming the path: missing, unreadable, a directory, empty; no path
  /// at all. ConfigError: a format that is not read yet.
  static TokenStream open(const std::vector<std::string>& paths, TokenFormat format);
  TokenStream(TokenStream&&) = default;
  TokenStream& operator=(TokenStream&&) = default;
  TokenStream(const TokenStream&) = delete;
  TokenStream& operator=(const TokenStream&) = delete;

  /// All tokens, begin and end of every file included.
  int64_t num_tokens() const { return starts_.back(); }
  /// Writes tokens [begin, begin + count) to `out`. Error unless the range lies in the stream.
  void read(int64_t begin, int64_t count, int32_t* out) const;

 private:
  TokenStream() = default;

  std::vector<MappedFile> files_;
  std::vector<int64_t> starts_ = {0};  // first token of each file; the total last
};

}  // namespace spillway::data
