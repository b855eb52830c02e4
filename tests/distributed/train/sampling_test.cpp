// Sampling: what is chosen from logits, prompts and texts, and that one rank or several say the
// same.
#include "spillway/train/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "spillway/core/rng.h"
#include "support/train_fixture.h"

namespace spillway::train {
namespace {

// f32 sums over experts in other groups of rows.
constexpr double kLogitTolerance = 1e-5;
const std::string kBad = "\xef\xbf\xbd";  // U+FFFD

class ChooseToken : public ::testing::Test {
 protected:
  ChooseToken() { ids_.data.format = data::TokenFormat::kU16; }
  config::Config ids_;   // the vocabulary is the logits'
  config::Config text_;  // 258 ids, of which 256 begins a text
};

TEST_F(ChooseToken, GreedyTakesTheLikeliestAndOfEqualOnesTheFirst) {
  EXPECT_EQ(choose_token(ids_, {0.5, 2.0, -1.0, 2.0}, 0, 0.999), 1);
  EXPECT_EQ(choose_token(ids_, {-3.0, -3.0}, 0, 0.999), 0);
  EXPECT_EQ(choose_token(ids_, {-3.0, -2.0, -1.0}, 0, 0.0), 2);
}

TEST_F(ChooseToken, FollowsTheDistribution) {
  // Probabilities 1/8, 1/2, 3/8 at temperature 2.
  const std::vector<double> logits{2 * std::log(1.0), 2 * std::log(4.0), 2 * std::log(3.0)};
  EXPECT_EQ(choose_token(ids_, logits, 2.0, 0.0), 0);
  EXPECT_EQ(choose_token(ids_, logits, 2.0, 0.1249), 0);
  EXPECT_EQ(choose_token(ids_, logits, 2.0, 0.1251), 1);
  EXPECT_EQ(choose_token(ids_, logits, 2.0, 0.6249), 1);
  EXPECT_EQ(choose_token(ids_, logits, 2.0, 0.6251), 2);
  EXPECT_EQ(choose_token(ids_, logits, 2.0, std::nextafter(1.0, 0.0)), 2);
}

TEST_F(ChooseToken, LowTemperatureIsGreedyWithoutOverflow) {
  EXPECT_EQ(choose_token(ids_, {900.0, 901.0, -900.0}, 1e-6, 0.999), 1);
}

TEST_F(ChooseToken, TextNeverBeginsAgainNorLeavesItsIds) {
  std::vector<double> logits(320, 0.0);
  logits[data::kBeginToken] = 50.0;
  logits[300] = 60.0;
  logits[data::kEndToken] = 1.0;
  EXPECT_EQ(choose_token(text_, logits, 0, 0.5), data::kEndToken);
  EXPECT_EQ(choose_token(ids_, logits, 0, 0.5), 300);
  for (int i = 0; i < 1000; ++i) {
    const int32_t token = choose_token(text_, logits, 1.0, i / 1000.0);
    EXPECT_TRUE(token < data::kBeginToken || token == data::kEndToken) << token;
  }
}

TEST_F(ChooseToken, PromptsOfTextAreBytes) {
  EXPECT_EQ(encode_prompt(text_, "a\xc3\xa9"),
            (std::vector<int32_t>{data::kBeginToken, 'a', 0xc3, 0xa9}));
  EXPECT_EQ(encode_prompt(text_, ""), std::vector<int32_t>{data::kBeginToken});
  EXPECT_EQ(decode_tokens(text_, {data::kBeginToken, 'a', 0xc3, 0xff, data::kEndToken, '\n'}),
            "a" + kBad + kBad + "\n");
}

TEST_F(ChooseToken, TextIsValidUtf8) {
  const auto decoded = [&](const std::string& bytes) {
    std::vector<int32_t> tokens;
    for (const char c : bytes) tokens.push_back(static_cast<unsigned char>(c));
    return decode_tokens(text_, tokens);
  };
  for (const char* valid : {"", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                            "\xee\x80\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(decoded(valid), valid);
  }
  // Stray, cut short, longer than needed, surrogate, beyond the last character.
  for (const char* bad : {"\x80", "\xc3", "\xe2\x82", "\xf0\x9f\x98", "\xc1\xbf", "\xe0\x9f\xbf",
                          "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80"}) {
    std::string replaced;
    for (const char* byte = bad; *byte != 0; ++byte) replaced += kBad;
    EXPECT_EQ(decoded(std::string("a") + bad + "b"), "a" + replaced + "b");
  }
}

TEST_F(ChooseToken, PromptsOfIdsAreNumbers) {
  ids_.model.vocab_size = 100;
  EXPECT_EQ(encode_prompt(ids_, " 3,99 \t0, 7"), (std::vector<int32_t>{3, 99, 0, 7}));
  EXPECT_EQ(decode_tokens(ids_, {3, 99, 0}), "3 99 0");
  for (const char* bad : {"", " , ", "100", "-1", "3.5", "0x3", "3;4", "99999999999999999999"}) {
    EXPECT_THROW(encode_prompt(ids_, bad), ConfigError) << bad;
  }
}

class SamplingTest : public TrainTest {
 protected:
  struct Run {
    Run(comm::Communicator& world, const config::Config& config)
        : ctx(Device::kCpu), sampler(ctx, world, config) {
      // Away from the small weights of a start, where all logits are alike.
      for (nn::Parameter& parameter : sampler.parameters().all()) {
        for (float& value : parameter.value.span<float>()) value *= 4.0F;
      }
    }
    Context ctx;
    Sampler sampler;
  };
  config::Config config(int ep = 1, int64_t seed = 3) const {
    config::Config c = base_config();
    c.parallel.ep = ep;
    c.run.seed = seed;
    return c;
  }
  const std::vector<int32_t> prompt_{data::kBeginToken, 'o', 'n', 'c', 'e'};
};

TEST_F(SamplingTest, GreedyFollowsTheLogits) {
  auto ranks = first_ranks(1);
  if (!ranks) return;
  Run run(*ranks, config());
  std::vector<int32_t> tokens = prompt_;
  for (const int32_t token : run.sampler.generate(prompt_, 6, 0.0)) {
    std::vector<double> logits = run.sampler.next_logits(tokens);
    logits[data::kBeginToken] = -1e30;
    EXPECT_EQ(token, std::max_element(logits.begin(), logits.end()) - logits.begin());
    tokens.push_back(token);
  }
  EXPECT_EQ(tokens.size(), prompt_.size() + 6);
}

TEST_F(SamplingTest, TheSeedDecides) {
  auto ranks = first_ranks(1);
  if (!ranks) return;
  Run run(*ranks, config()), again(*ranks, config());
  const auto tokens = run.sampler.generate(prompt_, 20, 1.0);
  EXPECT_EQ(again.sampler.generate(prompt_, 20, 1.0), tokens);
  EXPECT_EQ(run.sampler.generate(prompt_, 20, 1.0), tokens) << "no state is kept between calls";
  EXPECT_NE(run.sampler.generate(prompt_, 20, 5.0), tokens);
  // Other draws on the same weights.
  Run other(*ranks, config(1, 4));
  for (nn::Parameter& parameter : other.sampler.parameters().all()) {
    copy(run.sampler.parameters().at(parameter.spec.name).value, parameter.value);
  }
  EXPECT_NE(other.sampler.generate(prompt_, 20, 1.0), tokens);
}

TEST_F(SamplingTest, NothingIsAskedFor) {
  auto ranks = first_ranks(1);
  if (!ranks) return;
  Run run(*ranks, config());
  EXPECT_TRUE(run.sampler.generate(prompt_, 0, 1.0).empty());
}

TEST_F(SamplingTest, ALongPromptCountsByItsLastTokens) {
  auto ranks = first_ranks(1);
  if (!ranks) return;
  Run run(*ranks, config());
  std::vector<int32_t> longer(70);
  std::iota(longer.begin(), longer.end(), int32_t{65});
  const std::vector<int32_t> last(longer.end() - 32, longer.end());
  ASSERT_EQ(base_config().model.max_seq, 32);
  EXPECT_EQ(run.sampler.next_logits(longer), run.sampler.next_logits(last));
  const auto tokens = run.sampler.generate(longer, 5, 0.0);
  EXPECT_EQ(tokens.size(), 5U);
  EXPECT_EQ(run.sampler.generate(last, 5, 0.0), tokens);
  // And one token less is another context.
  EXPECT_NE(run.sampler.next_logits({last.begin() + 1, last.end()}), run.sampler.next_logits(last));
}

TEST_F(SamplingTest, TextStopsAtItsEndAndIdsDoNot) {
  auto ranks = first_ranks(1);
  if (!ranks) return;
  config::Config c = config();
  for (const bool text : {true, false}) {
    c.data.format = text ? data::TokenFormat::kText : data::TokenFormat::kU16;
    Run run(*ranks, c);
    // The row of the likeliest token becomes that of the end, and the only one.
    const std::vector<double> logits = run.sampler.next_logits(prompt_);
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    ASSERT_GT(logits[static_cast<size_t>(best)], 0);
    Tensor& output = run.sampler.parameters().at("lm_head.weight").value;
    const std::vector<float> row(output.data<float>() + best * 32,
                                 output.data<float>() + (best + 1) * 32);
    output.zero();
    std::copy(row.begin(), row.end(), output.data<float>() + data::kEndToken * 32);
    const auto tokens = run.sampler.generate(prompt_, 3, 0.0);
    if (text) {
      EXPECT_TRUE(tokens.empty());
    } else {
      ASSERT_EQ(tokens.size(), 3U);
      EXPECT_EQ(tokens.front(), data::kEndToken);
    }
  }
}

class SamplingWorlds : public SamplingTest, public testing::WithParamInterface<Split> {};

TEST_P(SamplingWorlds, SayWhatOneRankSays) {
  std::vector<double> logits_of_one, logits_of_many;
  std::vector<int32_t> greedy_of_one, greedy_of_many, drawn_of_one, drawn_of_many;
  if (auto ranks = first_ranks(1)) {
    Run one(*ranks, config());
    logits_of_one = one.sampler.next_logits(prompt_);
    greedy_of_one = one.sampler.generate(prompt_, 12, 0.0);
    drawn_of_one = one.sampler.generate(prompt_, 12, 1.0);
  }
  auto ranks = first_ranks(GetParam().world());
  if (!ranks) return;
  config::Config c = config(GetParam().ep);
  // Buffers fit each call, whatever the run is told about capacity.
  c.capacity.policy = "fixed";
  c.capacity.fixed.slots = 8;
  Run many(*ranks, c);
  logits_of_many = many.sampler.next_logits(prompt_);
  greedy_of_many = many.sampler.generate(prompt_, 12, 0.0);
  drawn_of_many = many.sampler.generate(prompt_, 12, 1.0);
  EXPECT_EQ(greedy_of_many.size(), 12U) << "the tokens are known on every rank";
  if (!is_root()) {
    EXPECT_TRUE(logits_of_many.empty());
    return;
  }
  ASSERT_EQ(logits_of_many.size(), logits_of_one.size());
  for (size_t i = 0; i < logits_of_one.size(); ++i) {
    EXPECT_NEAR(logits_of_many[i], logits_of_one[i], kLogitTolerance) << i;
  }
  EXPECT_EQ(greedy_of_many, greedy_of_one);
  EXPECT_EQ(drawn_of_many, drawn_of_one);
}

INSTANTIATE_TEST_SUITE_P(Splits, SamplingWorlds, testing::ValuesIn(all_splits()),
                         [](const auto& p) { return split_name(p.param); });

}  // namespace
}  // namespace spillway::train
