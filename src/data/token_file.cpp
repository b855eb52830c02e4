#include "spillway/data/token_file.h"

#include <algorithm>

#include "spillway/core/choice.h"
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

int64_t id_bytes(TokenFormat format) { return format == TokenFormat::kU16 ? 2 : 4; }

uint32_t id_at(const uint8_t* bytes, int64_t width) {
  uint32_t id = 0;
  for (int64_t i = 0; i < width; ++i) id |= static_cast<uint32_t>(bytes[i]) << (8 * i);
  return id;
}

/// Tokens of one file.
int64_t num_tokens_of(const MappedFile& file, const std::string& path, TokenFormat format) {
  if (format == TokenFormat::kText) return file.size_bytes() + kMarkersPerFile;
  const int64_t width = id_bytes(format);
  if (file.size_bytes() % width != 0) {
    throw DataError(str("data file \"", path, "\": ", file.size_bytes(),
                        " bytes are no whole number of ids of ", width, " bytes (data.format \"",
                        choice_name(kFormatChoices, format), "\")"));
  }
  return file.size_bytes() / width;
}

}  // namespace

TokenStream TokenStream::open(const std::vector<std::string>& paths, TokenFormat format,
                              int64_t vocab_size) {
  if (paths.empty()) throw DataError("no data file is given");
  TokenStream stream;
  stream.format_ = format;
  stream.vocab_size_ = std::min(vocab_size, kMaxVocabSize);
  stream.paths_ = paths;
  stream.files_.reserve(paths.size());
  for (const std::string& path : paths) {
    const MappedFile& file = stream.files_.emplace_back(path);
    stream.starts_.push_back(stream.starts_.back() + num_tokens_of(file, path, format));
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
    read_file(file, begin - starts_[file], part, out);
    out += part;
    begin += part;
    count -= part;
    ++file;
  }
}

void TokenStream::read_file(size_t file, int64_t begin, int64_t count, int32_t* out) const {
  const std::span<const uint8_t> bytes = files_[file].bytes();
  if (format_ == TokenFormat::kText) {
    read_text(bytes, begin, count, out);
    return;
  }
  const int64_t width = id_bytes(format_);
  const uint8_t* const first = bytes.data() + begin * width;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t id = id_at(first + i * width, width);
    if (id >= vocab_size_) {
      throw DataError(str("data file \"", paths_[file], "\": token ", begin + i, " (byte ",
                          (begin + i) * width, ") is id ", id, "; allowed: 0 to ", vocab_size_ - 1,
                          " (model.vocab_size ", vocab_size_, ")"));
    }
    out[i] = static_cast<int32_t>(id);
  }
}

}  // namespace spillway::data
