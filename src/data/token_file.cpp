#include "spillway/data/token_file.h"

#include <algorithm>

#include "spillway/core/error.h"

namespace spillway::data {
namespace {

constexpr int64_t kMarkersPerFile = 2;  // begin and end

/// Writes tokens [begin, begin + count) of one text file: token 0 is begin, the last one is end.
void read_text(std::span<const uint8_t> bytes, int64_t begin, int64_t count, int32_t* out) {
  const auto num_bytes = static_cast<int64_t>(bytes.size());
  const int64_t end = begin + count;
  if (begin == 0) *out++ = kBeginToken;
  const int64_t first = std::max<int64_t>(begin - 1, 0);
  const int64_t last = std::min(end - 1, num_bytes);
  // `last` falls below `first` where the range holds markers only.
  for (int64_t i = first; i < last; ++i) *out++ = bytes[static_cast<size_t>(i)];
  if (end == num_bytes + kMarkersPerFile) *out = kEndToken;
}

}  // namespace

void check_format(TokenFormat format) {
  if (format == TokenFormat::kText) return;
  const char* const name = format == TokenFormat::kU16 ? "u16" : "u32";
  throw ConfigError(str("data.format is \"", name, "\", which is not read yet; allowed: \"text\""));
}

TokenStream TokenStream::open(const std::vector<std::string>& paths, TokenFormat format) {
  check_format(format);
  if (paths.empty()) throw DataError("no data file is given");
  TokenStream stream;
  stream.files_.reserve(paths.size());
  for (const std::string& path : paths) {
    const MappedFile& file = stream.files_.emplace_back(path);
    stream.starts_.push_back(stream.starts_.back() + file.size_bytes() + kMarkersPerFile);
  }
  return stream;
}

void TokenStream::read(int64_t begin, int64_t count, int32_t* out) const {
  SPILLWAY_CHECK(begin >= 0 && count >= 0 && begin <= num_tokens() - count, "tokens [", begin,
                 ", +", count, ") of a stream of ", num_tokens());
  // The file that holds `begin`: the last start that is not beyond it.
  auto file = static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), begin) -
                                  starts_.begin() - 1);
  while (count > 0) {
    const int64_t part = std::min(count, starts_[file + 1] - begin);
    read_text(files_[file].bytes(), begin - starts_[file], part, out);
    out += part;
    begin += part;
    count -= part;
    ++file;
  }
}

}  // namespace spillway::data
