#include "spillway/data/batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "spillway/core/error.h"
#include "support/temp_files.h"

namespace spillway::data {
namespace {

using spillway::testing::TempFiles;

// Byte i of a test file holds i mod 251, a prime: a sequence shows where it came from.
constexpr int64_t kPrime = 251;

std::string numbered_bytes(int64_t count) {
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) bytes.push_back(static_cast<char>(i % kPrime));
  return bytes;
}

/// A stream of exactly `num_tokens` tokens in one file: begin, numbered bytes, end.
TokenStream stream_of(const TempFiles& files, int64_t num_tokens) {
  return TokenStream::open({files.write("tokens", numbered_bytes(num_tokens - 2))},
                           TokenFormat::kText);
}

/// Token t of `stream_of`.
int32_t token_at(int64_t t, int64_t num_tokens) {
  if (t == 0) return kBeginToken;
  if (t == num_tokens - 1) return kEndToken;
  return static_cast<int32_t>((t - 1) % kPrime);
}

std::vector<int32_t> row(const Tensor& tensor, int64_t i) {
  const auto all = tensor.span<int32_t>();
  const auto first = all.begin() + i * tensor.dim(1);
  return {first, first + tensor.dim(1)};
}

std::vector<std::vector<int32_t>> rows(const Tensor& tensor) {
  std::vector<std::vector<int32_t>> result;
  for (int64_t i = 0; i < tensor.dim(0); ++i) result.push_back(row(tensor, i));
  return result;
}

class Batches : public ::testing::Test {
 protected:
  BatchSource source(int64_t num_tokens, const BatchOptions& options) {
    return BatchSource(stream_of(files_, num_tokens), options);
  }

  TempFiles files_;
  Context ctx_;
};

TEST_F(Batches, TokensAndTargetsExactly) {
  constexpr int64_t kTokens = 14;  // 3 sequences of 4 + 1, one token left over
  const auto src = source(kTokens, {.seq = 4, .shuffle = false, .layout = {.micro_batch = 3}});
  ASSERT_EQ(src.num_sequences(), 3);
  const Batch batch = src.batch(ctx_, 1, 0);
  EXPECT_EQ(batch.tokens.shape(), (Shape{3, 4}));
  EXPECT_EQ(batch.targets.shape(), (Shape{3, 4}));
  EXPECT_EQ(batch.tokens.dtype(), DType::kI32);
  EXPECT_EQ(batch.tokens.purpose(), Purpose::kData);
  EXPECT_EQ(rows(batch.tokens), (std::vector<std::vector<int32_t>>{
                                    {kBeginToken, 0, 1, 2}, {3, 4, 5, 6}, {7, 8, 9, 10}}));
  EXPECT_EQ(rows(batch.targets),
            (std::vector<std::vector<int32_t>>{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}}));
}

TEST_F(Batches, TheEndTokenIsTheLastTarget) {
  const auto src = source(13, {.seq = 4, .shuffle = false, .layout = {.micro_batch = 3}});
  EXPECT_EQ(row(src.batch(ctx_, 1, 0).targets, 2), (std::vector<int32_t>{8, 9, 10, kEndToken}));
}

TEST_F(Batches, SequencesRunAcrossFiles) {
  const auto a = files_.write("a", "ab"), b = files_.write("b", "c");
  const BatchSource src(TokenStream::open({a, b}, TokenFormat::kText),
                        {.seq = 3, .shuffle = false, .layout = {.micro_batch = 2}});
  const Batch batch = src.batch(ctx_, 1, 0);
  EXPECT_EQ(rows(batch.tokens), (std::vector<std::vector<int32_t>>{{kBeginToken, 'a', 'b'},
                                                                   {kEndToken, kBeginToken, 'c'}}));
  EXPECT_EQ(rows(batch.targets), (std::vector<std::vector<int32_t>>{
                                     {'a', 'b', kEndToken}, {kBeginToken, 'c', kEndToken}}));
}

struct Count {
  int64_t num_tokens, seq, sequences;
};
class NumSequences : public ::testing::TestWithParam<Count> {};
TEST_P(NumSequences, TheTailShortOfASequenceIsDropped) {
  const TempFiles files;
  const BatchSource src(stream_of(files, GetParam().num_tokens), {.seq = GetParam().seq});
  EXPECT_EQ(src.num_sequences(), GetParam().sequences);
}
INSTANTIATE_TEST_SUITE_P(Counts, NumSequences,
                         ::testing::Values(Count{5, 4, 1}, Count{8, 4, 1}, Count{9, 4, 2},
                                           Count{12, 4, 2}, Count{13, 4, 3}, Count{3, 1, 2},
                                           Count{1001, 10, 100}, Count{1000, 10, 99}));

TEST_F(Batches, AnEpochVisitsEverySequenceOnceAndTheNextInAnotherOrder) {
  const auto src = source(1001, {.seq = 10, .seed = 3});
  ASSERT_EQ(src.num_sequences(), 100);
  std::vector<std::vector<int64_t>> epochs(3);
  for (int64_t g = 0; g < 300; ++g) {
    epochs[static_cast<size_t>(g / 100)].push_back(src.sequence_at(g));
  }
  for (const auto& epoch : epochs) {
    EXPECT_EQ(std::set<int64_t>(epoch.begin(), epoch.end()).size(), 100U);
    EXPECT_FALSE(std::is_sorted(epoch.begin(), epoch.end()));
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
}

TEST_F(Batches, WithoutShuffleEveryEpochIsInFileOrder) {
  const auto src = source(61, {.seq = 10, .shuffle = false, .seed = 3});
  for (int64_t g = 0; g < 20; ++g) EXPECT_EQ(src.sequence_at(g), g % 6);
}

TEST_F(Batches, AStepMayCrossTheEndOfAnEpoch) {
  // 5 sequences, 4 a step: step 2 takes the last of epoch 0 and three of epoch 1.
  const auto src =
      source(51, {.seq = 10, .seed = 8, .layout = {.micro_batch = 2, .grad_accum = 2}});
  ASSERT_EQ(src.num_sequences(), 5);
  for (int64_t m = 0; m < 2; ++m) {
    const Batch batch = src.batch(ctx_, 2, m);
    for (int64_t i = 0; i < 2; ++i) {
      const int64_t first = src.sequence_at(4 + m * 2 + i) * 10;
      EXPECT_EQ(row(batch.tokens, i)[3], token_at(first + 3, 51));
      EXPECT_EQ(row(batch.targets, i)[9], token_at(first + 10, 51));
    }
  }
}

TEST_F(Batches, ABatchLargerThanTheDataRepeatsIt) {
  const auto src = source(21, {.seq = 10, .layout = {.micro_batch = 6}});
  std::map<std::vector<int32_t>, int> times;
  for (const auto& tokens : rows(src.batch(ctx_, 1, 0).tokens)) ++times[tokens];
  ASSERT_EQ(times.size(), 2U);
  for (const auto& [tokens, count] : times) EXPECT_EQ(count, 3);
}

TEST_F(Batches, SeedsGiveOtherOrders) {
  const auto a = source(1001, {.seq = 10, .seed = 1});
  const auto b = source(1001, {.seq = 10, .seed = 2});
  int equal = 0;
  for (int64_t g = 0; g < 100; ++g) equal += a.sequence_at(g) == b.sequence_at(g) ? 1 : 0;
  EXPECT_LT(equal, 12);  // 1 expected by chance
}

TEST_F(Batches, TheStepIsTheCursor) {
  const BatchOptions options = {
      .seq = 10, .seed = 4, .layout = {.world = 2, .rank = 1, .micro_batch = 2, .grad_accum = 2}};
  const auto run = source(501, options);
  for (int64_t step = 1; step <= 9; ++step) run.batch(ctx_, step, 0);
  const auto resumed = source(501, options);  // knows nothing of steps 1 to 9
  for (int64_t m = 0; m < 2; ++m) {
    EXPECT_EQ(rows(resumed.batch(ctx_, 10, m).tokens), rows(run.batch(ctx_, 10, m).tokens));
  }
}

struct Split {
  int64_t world, micro_batch, grad_accum;
};
std::string split_name(const Split& s) {
  return str(s.world, "x", s.micro_batch, "x", s.grad_accum);
}

class GlobalBatch : public ::testing::TestWithParam<Split> {
 protected:
  /// All sequences of a step over ranks and micro-batches, in cell order.
  std::vector<std::vector<int32_t>> step_of(const Split& split, int64_t step) {
    std::vector<std::vector<int32_t>> all;
    for (int64_t m = 0; m < split.grad_accum; ++m) {
      for (int64_t rank = 0; rank < split.world; ++rank) {
        const BatchSource src(stream_of(files_, kTokens),
                              {.seq = kSeq,
                               .seed = 6,
                               .layout = {split.world, rank, split.micro_batch, split.grad_accum}});
        for (auto& tokens : rows(src.batch(ctx_, step, m).tokens)) all.push_back(tokens);
      }
    }
    return all;
  }

  static constexpr int64_t kSeq = 6, kTokens = 20 * kSeq + 1;  // 20 sequences: 2.5 steps of 8
  TempFiles files_;
  Context ctx_;
};

TEST_P(GlobalBatch, SplitsOfTheSameProductSeeTheSameSequences) {
  for (int64_t step = 1; step <= 4; ++step) {
    SCOPED_TRACE(step);
    const auto whole = step_of({1, 8, 1}, step);
    ASSERT_EQ(whole.size(), 8U);
    // In cell order even the order is the same, since cells are consecutive.
    EXPECT_EQ(step_of(GetParam(), step), whole);
  }
}

TEST_P(GlobalBatch, EvaluationReadsFileOrder) {
  const Split split = GetParam();
  std::vector<int64_t> starts;
  for (int64_t batch_index = 0; batch_index < 2; ++batch_index) {
    for (int64_t m = 0; m < split.grad_accum; ++m) {
      for (int64_t rank = 0; rank < split.world; ++rank) {
        const BatchSource src(
            stream_of(files_, kTokens),
            {.seq = kSeq, .layout = {split.world, rank, split.micro_batch, split.grad_accum}});
        ASSERT_EQ(src.num_eval_batches(100), 2);
        const Batch batch = src.eval_batch(ctx_, batch_index, m);
        for (int64_t i = 0; i < split.micro_batch; ++i) {
          starts.push_back(row(batch.tokens, i)[1]);  // the byte number of the second token
        }
      }
    }
  }
  ASSERT_EQ(starts.size(), 16U);
  for (size_t q = 0; q < starts.size(); ++q) EXPECT_EQ(starts[q], static_cast<int64_t>(q) * kSeq);
}

INSTANTIATE_TEST_SUITE_P(Splits, GlobalBatch,
                         ::testing::Values(Split{1, 8, 1}, Split{1, 4, 2}, Split{1, 1, 8},
                                           Split{2, 4, 1}, Split{2, 2, 2}, Split{2, 1, 4},
                                           Split{4, 2, 1}, Split{4, 1, 2}, Split{8, 1, 1}),
                         [](const auto& p) { return split_name(p.param); });

TEST_F(Batches, ConsecutiveStepsShareNoSequenceWithinAnEpoch) {
  const auto src = source(801, {.seq = 10, .layout = {.micro_batch = 8}});
  std::set<std::vector<int32_t>> seen;
  for (int64_t step = 1; step <= 10; ++step) {
    for (const auto& tokens : rows(src.batch(ctx_, step, 0).tokens)) seen.insert(tokens);
  }
  EXPECT_EQ(seen.size(), 80U);
}

TEST_F(Batches, EvaluationTakesAsManyFullBatchesAsThereAre) {
  const auto src = source(101, {.seq = 10, .layout = {.micro_batch = 3}});  // 10 sequences
  EXPECT_EQ(src.num_eval_batches(2), 2);
  EXPECT_EQ(src.num_eval_batches(3), 3);
  EXPECT_EQ(src.num_eval_batches(4), 3);
  EXPECT_THROW(src.eval_batch(ctx_, 3, 0), DataError);
  EXPECT_THROW(src.eval_batch(ctx_, -1, 0), DataError);
}

TEST_F(Batches, EvaluationWithoutAFullGlobalBatchIsADataError) {
  const auto src = source(101, {.seq = 10, .layout = {.world = 2, .micro_batch = 6}});
  try {
    src.num_eval_batches(1);
    ADD_FAILURE() << "accepted";
  } catch (const DataError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("10 sequences"), std::string::npos) << text;
    EXPECT_NE(text.find("needs 12"), std::string::npos) << text;
  }
}

TEST_F(Batches, DataShorterThanASequenceIsADataError) {
  try {
    source(10, {.seq = 10});
    ADD_FAILURE() << "accepted";
  } catch (const DataError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("10 tokens"), std::string::npos) << text;
    EXPECT_NE(text.find("needs 11"), std::string::npos) << text;
  }
}

TEST_F(Batches, ArgumentsOutOfRangeThrow) {
  const auto src = source(101, {.seq = 10, .layout = {.grad_accum = 2}});
  EXPECT_THROW(src.batch(ctx_, 0, 0), Error);
  EXPECT_THROW(src.batch(ctx_, 1, 2), Error);
  EXPECT_THROW(src.batch(ctx_, 1, -1), Error);
  EXPECT_THROW(src.sequence_at(-1), Error);
  EXPECT_THROW(src.num_eval_batches(0), Error);
}

struct BadLayout {
  const char* name;
  BatchOptions options;
};
class BatchLayoutErrors : public ::testing::TestWithParam<BadLayout> {};
TEST_P(BatchLayoutErrors, AreRefused) {
  const TempFiles files;
  EXPECT_THROW(BatchSource(stream_of(files, 100), GetParam().options), Error);
}
INSTANTIATE_TEST_SUITE_P(
    Layouts, BatchLayoutErrors,
    ::testing::Values(BadLayout{"rank_is_world", {.seq = 4, .layout = {.world = 2, .rank = 2}}},
                      BadLayout{"rank_negative", {.seq = 4, .layout = {.rank = -1}}},
                      BadLayout{"no_world", {.seq = 4, .layout = {.world = 0}}},
                      BadLayout{"no_micro_batch", {.seq = 4, .layout = {.micro_batch = 0}}},
                      BadLayout{"no_grad_accum", {.seq = 4, .layout = {.grad_accum = 0}}},
                      BadLayout{"no_seq", {.seq = 0}},
                      BadLayout{"overflow",
                                {.seq = 4,
                                 .layout = {.world = int64_t{1} << 31,
                                            .micro_batch = int64_t{1} << 32}}}),
    [](const auto& p) { return p.param.name; });

}  // namespace
}  // namespace spillway::data
