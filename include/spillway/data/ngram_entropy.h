#pragma once

#include "spillway/data/token_file.h"

namespace spillway::data {

/// What a table of byte contexts would reach on the text it was made from: a yardstick for a
/// byte-level model. Conditional entropies in nats a byte, of the counts themselves.
struct NgramEntropy {
  double bigram = 0.0;   ///< H(byte | 1 byte before)
  double trigram = 0.0;  ///< H(byte | 2 bytes before)
};

/// Reads the whole text once (64 MiB of counts while it runs). Begin and end tokens are left out.
NgramEntropy ngram_entropy(const TokenStream& text);

}  // namespace spillway::data
