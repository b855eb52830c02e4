#include "spillway/data/ngram_entropy.h"

#include <algorithm>
#include <cmath>

namespace spillway::data {
namespace {

constexpr size_t kBytes = 256;

/// sum over contexts of -n(context, byte) ln(n(context, byte) / n(context)), divided by all n.
double conditional_entropy(const std::vector<uint32_t>& counts) {
  double nats = 0.0, total = 0.0;
  for (size_t context = 0; context < counts.size(); context += kBytes) {
    double in_context = 0.0, n_log_n = 0.0;
    for (size_t byte = 0; byte < kBytes; ++byte) {
      const double n = counts[context + byte];
      in_context += n;
      if (n > 0.0) n_log_n += n * std::log(n);
    }
    if (in_context > 0.0) nats += in_context * std::log(in_context) - n_log_n;
    total += in_context;
  }
  return total > 0.0 ? nats / total : 0.0;
}

}  // namespace

NgramEntropy ngram_entropy(const TokenStream& text) {
  constexpr int64_t kChunk = 1 << 16;
  std::vector<int32_t> ids(kChunk);
  std::vector<uint32_t> pairs(kBytes * kBytes), triples(kBytes * kBytes * kBytes);
  size_t context = 0;  // the last two bytes
  int64_t run = 0;     // bytes since the last begin or end
  for (int64_t begin = 0; begin < text.num_tokens(); begin += kChunk) {
    const int64_t count = std::min(kChunk, text.num_tokens() - begin);
    text.read(begin, count, ids.data());
    for (int64_t i = 0; i < count; ++i) {
      const auto id = static_cast<size_t>(ids[static_cast<size_t>(i)]);
      if (id >= kBytes) {
        run = 0;
        continue;
      }
      if (run >= 1) ++pairs[context % kBytes * kBytes + id];
      if (run >= 2) ++triples[context * kBytes + id];
      context = context % kBytes * kBytes + id;
      ++run;
    }
  }
  return {conditional_entropy(pairs), conditional_entropy(triples)};
}

}  // namespace spillway::data
