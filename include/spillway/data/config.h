#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway::data {

/// How the bytes of a token file become ids.
enum class TokenFormat {
  kText,  ///< UTF-8 bytes as ids 0..255; begin 256 and end 257 around every file
  kU16,   ///< little-endian 16-bit ids, nothing added
  kU32,   ///< little-endian 32-bit ids, nothing added
};

/// The formats that a config may name.
inline constexpr std::array<std::pair<std::string_view, TokenFormat>, 3> kFormatChoices = {{
    {"text", TokenFormat::kText},
    {"u16", TokenFormat::kU16},
    {"u32", TokenFormat::kU32},
}};

/// Ids of the text format.
inline constexpr int32_t kBeginToken = 256;
inline constexpr int32_t kEndToken = 257;
/// The least `model.vocab_size` that holds every id of the text format.
inline constexpr int64_t kTextVocabSize = 258;

/// The config section `data`.
struct DataConfig {
  /// Training files, concatenated in this order. Relative paths: from the working directory.
  std::vector<std::string> train;
  /// Validation files, read in file order; empty = no evaluation.
  std::vector<std::string> valid;
  /// "text": UTF-8 bytes; "u16", "u32": files of ids, each in [0, model.vocab_size).
  TokenFormat format = TokenFormat::kText;
  /// Inputs (and targets) a sequence, in tokens; at least 1.
  int64_t seq = 256;
  /// Each epoch in another seeded order; false = file order in every epoch.
  bool shuffle = true;
};

/// The field list: drives parse, dump and the check for unknown keys.
template <class V>
void visit_fields(V& v, DataConfig& c) {
  v.field("train", c.train);
  v.field("valid", c.valid);
  v.choice("format", c.format, kFormatChoices);
  v.field("seq", c.seq);
  v.field("shuffle", c.shuffle);
}

/// Throws ConfigError (JSON path, value, what is allowed): no training file, an empty path, `seq`
/// below 1. Opens no file.
void validate(const DataConfig& config);

}  // namespace spillway::data
