// The balance terms of the router: what each takes together, and their gradients through every
// score function.
#include <gtest/gtest.h>

#include "op_test.h"
#include "spillway/ops/basic.h"
#include "spillway/ops/route.h"

namespace spillway::ops {
namespace {

using kernels::ScoreFunction;

constexpr int64_t kExperts = 6;
constexpr int64_t kSeq = 4;
constexpr int64_t kTokens = 3 * kSeq;
constexpr int64_t kTopK = 2;
// Sums of a hundred products in double.
constexpr double kRounding = 1e-13;

/// This rank and one more, whose counts and number of tokens are known. Counts its sums.
class TwoRanks : public comm::Communicator {
 public:
  explicit TwoRanks(std::vector<double> other) : other_(std::move(other)) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string name() const override { return "two"; }
  void all_reduce_sum(Context&, Tensor& values) override {
    ++sums;
    for (size_t i = 0; i < other_.size(); ++i) values.span<double>()[i] += other_[i];
  }
  void all_gather(const void*, void*, int64_t) override { refuse(); }
  std::vector<std::vector<std::byte>> gather_to_root(std::span<const std::byte>) override {
    refuse();
  }
  void broadcast_from_root(std::vector<std::byte>&) override { refuse(); }
  void exchange(std::span<const comm::Segment>, std::span<const comm::Segment>) override {
    refuse();
  }
  void barrier() override { refuse(); }
  std::unique_ptr<comm::Communicator> split(int, int) override { refuse(); }
  int sums = 0;

 private:
  [[noreturn]] static void refuse() { throw Error("a collective that no balance term needs"); }
  std::vector<double> other_;
};

// Assignments of the other rank's 5 tokens.
const std::vector<double> kOther{3, 0, 2, 4, 1, 0, 5};

/// E/K * sum_e c_e/N * P_e, written down once more.
double balance(const std::vector<double>& counts, double num_tokens, const Tensor& probs) {
  double sum = 0.0;
  for (int64_t e = 0; e < kExperts; ++e) {
    double mean = 0.0;
    for (int64_t t = 0; t < probs.dim(0); ++t) mean += probs.data<double>()[t * kExperts + e];
    sum += counts[static_cast<size_t>(e)] / num_tokens * mean / static_cast<double>(probs.dim(0));
  }
  return static_cast<double>(kExperts) / static_cast<double>(kTopK) * sum;
}

std::vector<double> counts_of(const Tensor& topk_idx) {
  std::vector<double> counts(kExperts, 0.0);
  for (const int32_t id : topk_idx.span<int32_t>()) counts[static_cast<size_t>(id)] += 1.0;
  return counts;
}

class BalanceTerm : public ::testing::TestWithParam<ScoreFunction> {
 protected:
  RouteOptions options(AuxLoss kind) {
    return {.routing = {.score = GetParam(), .scale = 1.5, .groups = 3, .topk_groups = 2},
            .top_k = kTopK,
            .bias = tensor_of<float>(ctx_, {kExperts}, {0.5F, 0, -0.25F, 0.125F, 0, -1}),
            .aux_loss = kind,
            .seq = kSeq,
            .cell_scale = 0.5,
            .token_scale = 0.01};
  }
  RouteResult routed(const RouteOptions& o, const Tensor& logits) {
    Tape tape(ctx_, false);
    return route(tape, Variable(logits), o);
  }
  /// What the terms are made of; the kernels have tests of their own.
  Tensor probs(const Tensor& logits) {
    Tensor ids = Tensor::empty(ctx_, {logits.dim(0), kTopK}, DType::kI32);
    Tensor gate = Tensor::empty(ctx_, {logits.dim(0), kTopK}, DType::kF64);
    Tensor result = Tensor::empty(ctx_, logits.shape(), DType::kF64);
    kernels::route(ctx_, {logits, {.score = GetParam()}, ids, gate, result});
    return result;
  }
  static double value(const RouteResult& r) { return scalar_value(r.aux_loss.value()); }

  Context ctx_;
  Tensor logits_ = f64(ctx_, {kTokens, kExperts}, 11, 1.5);
};

TEST_P(BalanceTerm, SwitchTakesTheCell) {
  const RouteResult r = routed(options(AuxLoss::kSwitch), logits_);
  EXPECT_NEAR(value(r), 0.5 * balance(counts_of(r.topk_idx), kTokens, probs(logits_)), kRounding);
}

TEST_P(BalanceTerm, SequenceTakesEachSequence) {
  const RouteResult r = routed(options(AuxLoss::kSequence), logits_);
  const Tensor p = probs(logits_);
  double wanted = 0.0;
  for (int64_t begin = 0; begin < kTokens; begin += kSeq) {
    wanted +=
        0.01 * kSeq *
        balance(counts_of(r.topk_idx.rows(begin, begin + kSeq)), kSeq, p.rows(begin, begin + kSeq));
  }
  EXPECT_NEAR(value(r), wanted, kRounding);
}

TEST_P(BalanceTerm, SequencesApartAddUpToTheSame) {
  double apart = 0.0;
  for (int64_t begin = 0; begin < kTokens; begin += kSeq) {
    apart += value(routed(options(AuxLoss::kSequence), logits_.rows(begin, begin + kSeq)));
  }
  EXPECT_NEAR(value(routed(options(AuxLoss::kSequence), logits_)), apart, kRounding);
}

TEST_P(BalanceTerm, GlobalTakesCountsOfAllRanksAndProbabilitiesOfThis) {
  TwoRanks world(kOther);
  RouteOptions o = options(AuxLoss::kGlobal);
  o.world = &world;
  const RouteResult r = routed(o, logits_);
  std::vector<double> counts = counts_of(r.topk_idx);
  for (size_t e = 0; e < counts.size(); ++e) counts[e] += kOther[e];
  EXPECT_NEAR(value(r), 0.01 * kTokens * balance(counts, kTokens + 5, probs(logits_)), kRounding);
  EXPECT_EQ(world.sums, 1);
}

TEST_P(BalanceTerm, GlobalOfTwoUnequalRanksAddsUpToOne) {
  // The same tokens on one rank, and split 3 to 9: each part sees the counts of the other.
  const RouteOptions o = options(AuxLoss::kGlobal);
  const RouteResult whole = routed(o, logits_);
  double parts = 0.0;
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 3}, {3, kTokens}}) {
    std::vector<double> other = counts_of(whole.topk_idx);
    const std::vector<double> mine = counts_of(whole.topk_idx.rows(begin, end));
    for (size_t e = 0; e < other.size(); ++e) other[e] -= mine[e];
    other.push_back(static_cast<double>(kTokens - (end - begin)));
    TwoRanks world(other);
    RouteOptions part = o;
    part.world = &world;
    parts += value(routed(part, logits_.rows(begin, end)));
  }
  EXPECT_NEAR(parts, value(whole), kRounding);
}

TEST_P(BalanceTerm, NoneIsZeroWithoutGradient) {
  Tape tape(ctx_);
  const Variable x = leaf(ctx_, "x", logits_);
  const RouteResult r = route(tape, x, options(AuxLoss::kNone));
  EXPECT_EQ(value(r), 0.0);
  tape.backward(r.aux_loss);
  for (const double g : x.grad().span<double>()) EXPECT_EQ(g, 0.0);
}

TEST_P(BalanceTerm, WithoutTokensAddsZeroButTakesPart) {
  const Tensor nothing = Tensor::empty(ctx_, {0, kExperts}, DType::kF64);
  for (const AuxLoss kind :
       {AuxLoss::kNone, AuxLoss::kSwitch, AuxLoss::kSequence, AuxLoss::kGlobal}) {
    TwoRanks world(kOther);
    RouteOptions o = options(kind);
    o.world = &world;
    Tape tape(ctx_);
    const Variable x = leaf(ctx_, "x", nothing);
    const RouteResult r = route(tape, x, o);
    EXPECT_EQ(value(r), 0.0);
    EXPECT_EQ(world.sums, kind == AuxLoss::kGlobal ? 1 : 0);
    tape.backward(r.aux_loss);
    EXPECT_EQ(x.grad().numel(), 0);
  }
}

TEST_P(BalanceTerm, ARegionRepeatsNoCollectiveAndGivesTheSameBits) {
  for (const AuxLoss kind : {AuxLoss::kSwitch, AuxLoss::kSequence, AuxLoss::kGlobal}) {
    std::vector<Tensor> gradients;
    for (const bool with_region : {false, true}) {
      TwoRanks world(kOther);
      RouteOptions o = options(kind);
      o.world = &world;
      Tape tape(ctx_);
      const Variable x = leaf(ctx_, "x", logits_);
      const auto body = [&](const Variable& in) {
        const RouteResult r = route(tape, in, o);
        return Inputs{r.gate, r.aux_loss, r.z_loss};
      };
      const Inputs y = with_region ? tape.region({}, x, body) : body(x);
      tape.backward(spillway::testing::detail::contract(tape, y, {}));
      gradients.push_back(x.grad());
      EXPECT_EQ(world.sums, kind == AuxLoss::kGlobal ? 1 : 0);
    }
    EXPECT_TRUE(same_bytes(gradients[0], gradients[1]));
  }
}

TEST_P(BalanceTerm, SequencesMustBeWhole) {
  RouteOptions o = options(AuxLoss::kSequence);
  for (const int64_t seq : {int64_t{0}, kSeq + 1}) {
    o.seq = seq;
    EXPECT_TRUE(spillway::testing::throws_with<Error>([&] { routed(o, logits_); },
                                                      {"12 tokens", str("sequences of ", seq)}));
  }
}

std::string score_label(ScoreFunction score) {
  constexpr const char* kNames[] = {"softmax", "sigmoid", "sqrtsoftplus"};
  return kNames[static_cast<int>(score)];
}

INSTANTIATE_TEST_SUITE_P(, BalanceTerm,
                         ::testing::Values(ScoreFunction::kSoftmax, ScoreFunction::kSigmoid,
                                           ScoreFunction::kSqrtSoftplus),
                         [](const auto& test) { return score_label(test.param); });

// ---- gradients ----------------------------------------------------------------------------------

/// score, term, normalize, groups, bias.
using GradientCase = std::tuple<ScoreFunction, AuxLoss, bool, bool, bool>;
class RouterGradient : public ::testing::TestWithParam<GradientCase> {};

TEST_P(RouterGradient, OfWeightsAndBothLossesMatchesDifferences) {
  Context ctx;
  const auto& [score, term, normalize, grouped, biased] = GetParam();
  TwoRanks world(kOther);
  RouteOptions options{.routing = {.score = score,
                                   .normalize_topk = normalize,
                                   .scale = 2.5,
                                   .groups = grouped ? 3 : 1,
                                   .topk_groups = grouped ? 2 : 1},
                       .top_k = kTopK,
                       .aux_loss = term,
                       .seq = kSeq,
                       .world = &world,
                       .cell_scale = 0.5,
                       .token_scale = 0.25};
  if (biased) options.bias = tensor_of<float>(ctx, {kExperts}, {0.5F, 0, -2, 0.125F, 0, -1});
  // Spread out: no choice changes within a difference step of 1e-5.
  EXPECT_TRUE(op_gradients_match(ctx,
                                 [&options](Tape& tape, const Inputs& in) {
                                   const RouteResult r = route(tape, in[0], options);
                                   return Inputs{r.gate, r.aux_loss, r.z_loss};
                                 },
                                 {{"logits", f64(ctx, {kTokens, kExperts}, 12, 1.5)}}));
}

std::string gradient_label(const ::testing::TestParamInfo<GradientCase>& test) {
  const auto& [score, term, normalize, grouped, biased] = test.param;
  constexpr const char* kTerms[] = {"_none", "_switch", "_sequence", "_global"};
  return str(score_label(score), kTerms[static_cast<int>(term)],
             normalize ? "_normalized" : "_plain", grouped ? "_groups" : "", biased ? "_bias" : "");
}
INSTANTIATE_TEST_SUITE_P(
    , RouterGradient,
    ::testing::Combine(::testing::Values(ScoreFunction::kSoftmax, ScoreFunction::kSigmoid,
                                         ScoreFunction::kSqrtSoftplus),
                       ::testing::Values(AuxLoss::kSwitch, AuxLoss::kSequence, AuxLoss::kGlobal),
                       ::testing::Bool(), ::testing::Bool(), ::testing::Bool()),
    gradient_label);

}  // namespace
}  // namespace spillway::ops
