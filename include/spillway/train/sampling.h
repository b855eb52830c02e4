#pragma once
// Text from a checkpoint's weights, a token at a time. The whole sequence is computed again for
// every token: plain, and slow for long texts.

#include <cstdint>
#include <string>
#include <vector>

#include "spillway/comm/communicator.h"
#include "spillway/config/config.h"
#include "spillway/model/decoder.h"
#include "spillway/train/capacity_manager.h"

namespace spillway::train {

/// What to generate.
struct SampleOptions {
  int64_t count = 0;         ///< tokens after the prompt, at most
  std::string prompt;        ///< of format "text": bytes; of the others: ids, apart by , or blanks
  double temperature = 0.0;  ///< 0: the likeliest token (of equal ones the least id)
};

/// Rank 0 only: the files of weights that `checkpoint.resume` stands for: a checkpoint, the newest
/// of a run directory ("auto": of run.dir), or a directory or file of transformers. Throws
/// ConfigError for "none", for "auto" without a checkpoint, and when the checkpoint's `model` or
/// `moe` is another; DataError when nothing is there.
std::string resolve_weights(const config::Config& config);

/// Tokens of the prompt. Text begins with the begin token. Throws ConfigError for ids that are no
/// numbers or outside the vocabulary, and for no id at all.
std::vector<int32_t> encode_prompt(const config::Config& config, const std::string& prompt);
/// What a person reads: of format "text" the bytes as UTF-8, U+FFFD in place of each byte that is
/// none, without begin and end; of the others the ids, a blank between two.
std::string decode_tokens(const config::Config& config, const std::vector<int32_t>& tokens);

/// A token after `logits`: the likeliest at temperature 0, else by `uniform` in [0, 1) from
/// softmax(logits / temperature). Of format "text" never the begin token nor an id past the format.
int32_t choose_token(const config::Config& config, const std::vector<double>& logits,
                     double temperature, double uniform);

/// A decoder without anything for training. Its calls are collectives of the world.
class Sampler {
 public:
  /// The weights start as those of a new run, by run.seed.
  Sampler(Context& ctx, comm::Communicator& world, const config::Config& config);
  /// From what `resolve_weights` gives. A problem of one rank is a SharedError of all.
  void load(const std::string& weights);

  /// The tokens that follow `tokens` (rank 0's count, at least one), at most `count`; those of text
  /// end before an end token. Every choice sees the last `model.max_seq` tokens. Draw i is draw i
  /// of a stream of run.seed: the same call gives the same tokens. The same on every rank.
  std::vector<int32_t> generate(std::vector<int32_t> tokens, int64_t count, double temperature);

  nn::ParameterStore& parameters() { return store_; }
  /// f64 logits of the token after `tokens`; rank 0 only, empty elsewhere.
  std::vector<double> next_logits(const std::vector<int32_t>& tokens);

 private:
  Context& ctx_;
  comm::Communicator& world_;
  config::Config config_;
  comm::Topology topology_;
  nn::ParameterStore store_;
  model::Decoder decoder_;
  CapacityManager capacity_;
};

/// Collective of the world: loads `checkpoint.resume` (resolved) and generates. Rank 0 returns
/// prompt and text, the others nothing.
std::string sample(Context& ctx, comm::Communicator& world, const config::Config& config,
                   const SampleOptions& options);

}  // namespace spillway::train
