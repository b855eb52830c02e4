#pragma once
// Token files read in place.

#include <cstdint>
#include <string>
#include <vector>

#include "spillway/data/config.h"
#include "spillway/data/mapped_file.h"

namespace spillway::data {

/// Ids are i32 wherever they are computed with: the most that a vocabulary can hold.
inline constexpr int64_t kMaxVocabSize = int64_t{1} << 31;

/// The tokens of several files as one stream. Text: begin + bytes of file 0 + end, begin + bytes of
/// file 1 + end, ... u16 and u32: the ids of file 0, those of file 1, ..., nothing between them.
/// The files stay mapped; memory grows with what is read, not with their size. Move-only.
class TokenStream {
 public:
  /// Maps every file. DataError naming the path: missing, unreadable, a directory, empty, a size
  /// that is no multiple of an id's 2 or 4 bytes (u16, u32); no path at all. `vocab_size`: what
  /// `read` holds the ids of u16 and u32 against.
  static TokenStream open(const std::vector<std::string>& paths, TokenFormat format,
                          int64_t vocab_size = kMaxVocabSize);
  TokenStream(TokenStream&&) = default;
  TokenStream& operator=(TokenStream&&) = default;
  TokenStream(const TokenStream&) = delete;
  TokenStream& operator=(const TokenStream&) = delete;

  /// All tokens, begin and end of every text file included.
  int64_t num_tokens() const { return starts_.back(); }
  /// Writes tokens [begin, begin + count) to `out`. Error unless the range lies in the stream;
  /// DataError for an id outside [0, vocab_size): the file, the place in it in tokens and bytes,
  /// the id, the size of the vocabulary.
  void read(int64_t begin, int64_t count, int32_t* out) const;

 private:
  TokenStream() = default;
  void read_file(size_t file, int64_t begin, int64_t count, int32_t* out) const;

  TokenFormat format_ = TokenFormat::kText;
  int64_t vocab_size_ = kMaxVocabSize;
  std::vector<std::string> paths_;
  std::vector<MappedFile> files_;
  std::vector<int64_t> starts_ = {0};  // first token of each file; the total last
};

}  // namespace spillway::data
