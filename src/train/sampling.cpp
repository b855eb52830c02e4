#include "spillway/train/sampling.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "spillway/checkpoint/checkpoint.h"
#include "spillway/checkpoint/load_weights.h"
#include "spillway/config/json.h"
#include "spillway/config/resume_rules.h"
#include "spillway/core/rng.h"
#include "spillway/train/run_options.h"

namespace spillway::train {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kSamplingStream = 0x73616d706c65;  // apart from those of weights and data

bool is_text(const config::Config& config) {
  return config.data.format == data::TokenFormat::kText;
}

/// The config of one sequence a rank and call; buffers are sized call by call.
config::Config sampling_config(config::Config config) {
  config.train.micro_batch = 1;
  config.data.seq = config.model.max_seq;
  config.capacity = {};
  return config;
}

void check_same_model(const config::Config& now, const std::string& checkpoint) {
  const std::string json = checkpoint::read_state(checkpoint).config_json;
  for (const config::KeyChange& key : config::key_changes(config::parse(json, checkpoint), now)) {
    if (key.path.rfind("model.", 0) == 0 || key.path.rfind("moe.", 0) == 0) {
      throw ConfigError(str(key.path, " is ", key.now, "; allowed: ", key.before,
                            ", that of the checkpoint ", checkpoint));
    }
  }
}

int32_t parse_id(const std::string& word, int64_t vocab) {
  int64_t id = -1;
  const char* end = word.data() + word.size();
  const auto [last, error] = std::from_chars(word.data(), end, id);
  if (error != std::errc() || last != end || id < 0 || id >= vocab) {
    throw ConfigError(
        str("--prompt: \"", word.substr(0, 40), "\" is no token id; allowed: 0 to ", vocab - 1));
  }
  return static_cast<int32_t>(id);
}

/// Bytes of the UTF-8 sequence that begins at `at`; 0 when none does (RFC 3629: shortest forms
/// only, no surrogates, at most U+10FFFF).
size_t utf8_length(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned first = byte(at);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  const unsigned least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte(at + 1) < least || byte(at + 1) > most) return 0;
  for (size_t i = at + 2; i < at + length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  return length;
}

/// The text with U+FFFD in place of each byte that is no UTF-8.
std::string valid_utf8(const std::string& text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    result += length > 0 ? text.substr(at, length) : std::string("\xef\xbf\xbd");
    at += std::max<size_t>(length, 1);
  }
  return result;
}

/// Rank 0's bytes, on every rank.
std::string broadcast(comm::Communicator& world, const std::string& bytes) {
  std::vector<std::byte> message(bytes.size());
  std::memcpy(message.data(), bytes.data(), bytes.size());
  world.broadcast_from_root(message);
  return {reinterpret_cast<const char*>(message.data()), message.size()};
}

/// The text of the first rank that has one, on every rank.
std::string first_problem(comm::Communicator& world, const std::string& mine) {
  const auto* bytes = reinterpret_cast<const std::byte*>(mine.data());
  std::string first;
  for (const std::vector<std::byte>& text : world.gather_to_root({bytes, mine.size()})) {
    if (first.empty()) first.assign(reinterpret_cast<const char*>(text.data()), text.size());
  }
  return broadcast(world, first);
}

}  // namespace

std::string resolve_weights(const config::Config& config) {
  const std::string& wanted = config.checkpoint.resume;
  if (wanted == config::kNoResume) {
    throw ConfigError("--sample needs weights; allowed: --resume auto or --resume DIR");
  }
  std::string found = wanted;
  if (wanted == config::kAutoResume) {
    found = checkpoint::find_newest(config.run.dir).value_or("");
    if (found.empty()) {
      throw ConfigError(str("--sample: run.dir \"", config.run.dir,
                            "\" holds no checkpoint; allowed: --resume DIR"));
    }
  }
  if (!fs::exists(found)) {
    throw DataError(str("checkpoint.resume: '", found, "' is not there"));
  }
  if (!fs::exists(fs::path(found) / "manifest.json") && fs::is_directory(found)) {
    found = checkpoint::find_newest(found).value_or(found);
  }
  if (fs::exists(fs::path(found) / "manifest.json")) check_same_model(config, found);
  return found;
}

std::vector<int32_t> encode_prompt(const config::Config& config, const std::string& prompt) {
  std::vector<int32_t> tokens;
  if (is_text(config)) {
    tokens.push_back(data::kBeginToken);
    for (const char c : prompt) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  constexpr const char* kBetween = ", \t\n";
  for (size_t begin = 0;
       (begin = prompt.find_first_not_of(kBetween, begin)) != std::string::npos;) {
    const size_t end = std::min(prompt.find_first_of(kBetween, begin), prompt.size());
    tokens.push_back(parse_id(prompt.substr(begin, end - begin), config.model.vocab_size));
    begin = end;
  }
  if (tokens.empty()) throw ConfigError("--prompt is empty; allowed: at least one token id");
  return tokens;
}

std::string decode_tokens(const config::Config& config, const std::vector<int32_t>& tokens) {
  std::string text;
  for (const int32_t token : tokens) {
    if (!is_text(config)) {
      text += str(text.empty() ? "" : " ", token);
    } else if (token < data::kBeginToken) {
      text += static_cast<char>(token);
    }
  }
  return valid_utf8(text);
}

int32_t choose_token(const config::Config& config, const std::vector<double>& logits,
                     double temperature, double uniform) {
  const auto num_ids = is_text(config) ? static_cast<size_t>(data::kTextVocabSize) : logits.size();
  const auto allowed = [&](size_t id) {
    return !is_text(config) || static_cast<int32_t>(id) != data::kBeginToken;
  };
  size_t best = 0;
  for (size_t id = 1; id < num_ids; ++id) {
    if (allowed(id) && logits[id] > logits[best]) best = id;
  }
  if (temperature == 0.0) return static_cast<int32_t>(best);
  std::vector<double> sums;  // of e^((logit - largest) / temperature), up to and with each id
  double sum = 0.0;
  for (size_t id = 0; id < num_ids; ++id) {
    if (allowed(id)) sum += std::exp((logits[id] - logits[best]) / temperature);
    sums.push_back(sum);
  }
  // The first id whose sum lies above; an id that is not allowed adds nothing, so it is never that.
  const auto found = std::upper_bound(sums.begin(), sums.end(), uniform * sum);
  return found == sums.end() ? static_cast<int32_t>(best)
                             : static_cast<int32_t>(found - sums.begin());
}

Sampler::Sampler(Context& ctx, comm::Communicator& world, const config::Config& config)
    : ctx_(ctx),
      world_(world),
      config_(sampling_config(config)),
      topology_(world, static_cast<int>(config.parallel.ep)),
      store_(ctx,
             model::parameter_specs(config::decoder_config(config), config::compute_dtype(config)),
             static_cast<uint64_t>(config.run.seed), config.parallel.ep, topology_.ep_rank()),
      decoder_(ctx, config::decoder_config(config), store_),
      capacity_(ctx, topology_, config_) {}

void Sampler::load(const std::string& weights) {
  std::vector<checkpoint::NamedTensor> buffers;
  for (const moe::SelectionBias& bias : decoder_.selection_biases()) {
    buffers.push_back({bias.name, bias.values});
  }
  std::string problem;
  try {
    checkpoint::load_weights(ctx_, weights, decoder_.config(),
                             {.ep = config_.parallel.ep, .ep_rank = topology_.ep_rank()}, store_,
                             buffers);
  } catch (const Error& error) {
    problem = error.what();
  }
  problem = first_problem(world_, problem);
  if (!problem.empty()) throw SharedError(problem, ExitCode::kData);
}

std::vector<double> Sampler::next_logits(const std::vector<int32_t>& tokens) {
  // One rank has the sequence. The others have none, but their experts work all the same.
  const bool mine = world_.rank() == 0;
  const auto length = static_cast<int64_t>(tokens.size());
  const int64_t seq = std::min(length, config_.model.max_seq);
  Tensor window = Tensor::empty(ctx_, {mine ? 1 : 0, seq}, DType::kI32, Purpose::kData);
  if (mine) std::copy(tokens.end() - seq, tokens.end(), window.data<int32_t>());
  autograd::Tape tape(ctx_, /*recording=*/false);
  const moe::MoeCall call{.session = capacity_.session(), .sizing = ep::Sizing::kLossless};
  const Tensor logits = decoder_.logits(tape, window, call, nullptr).value();
  std::vector<double> last;
  if (!mine) return last;
  const int64_t vocab = config_.model.vocab_size;
  visit_float(logits.dtype(), [&]<typename T>() {
    const T* row = logits.data<T>() + (seq - 1) * vocab;
    for (int64_t id = 0; id < vocab; ++id)
      last.push_back(static_cast<double>(static_cast<acc_t<T>>(row[id])));
  });
  return last;
}

std::vector<int32_t> Sampler::generate(std::vector<int32_t> tokens, int64_t count,
                                       double temperature) {
  const Rng rng(static_cast<uint64_t>(config_.run.seed), kSamplingStream);
  const bool counted = ctx_.counters().set_enabled(false);
  std::vector<int32_t> made;
  for (int64_t i = 0; i < count; ++i) {
    const std::vector<double> logits = next_logits(tokens);
    std::string chosen;
    if (world_.rank() == 0) {
      chosen = std::to_string(
          choose_token(config_, logits, temperature, rng.uniform_at(static_cast<uint64_t>(i))));
    }
    const int32_t token = std::stoi(broadcast(world_, chosen));
    if (is_text(config_) && token == data::kEndToken) break;
    tokens.push_back(token);
    made.push_back(token);
  }
  ctx_.counters().set_enabled(counted);
  return made;
}

std::string sample(Context& ctx, comm::Communicator& world, const config::Config& config,
                   const SampleOptions& options) {
  std::vector<int32_t> tokens = encode_prompt(config, options.prompt);
  Sampler sampler(ctx, world, config);
  sampler.load(config.checkpoint.resume);
  const std::vector<int32_t> made = sampler.generate(tokens, options.count, options.temperature);
  tokens.insert(tokens.end(), made.begin(), made.end());
  return world.rank() == 0 ? decode_tokens(config, tokens) : std::string();
}

}  // namespace spillway::train
