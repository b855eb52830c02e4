#include "spillway/optim/grad_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "small_model.h"

namespace spillway::optim {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class NormOf : public testing::TestWithParam<DType> {
 protected:
  NormOf() : store_(ctx_, small_model(GetParam()), kModelSeed, 1, 0) {}
  Context ctx_;
  nn::ParameterStore store_;
};

TEST_P(NormOf, SquaresAreExactAndByGroup) {
  const auto f = [](int64_t p, int64_t i) { return static_cast<float>((p * 5 + i) % 9 - 4); };
  fill_gradients(store_, 0, f);
  double dense = 0.0, expert = 0.0;
  for_each_element(store_, 0, [&](nn::Parameter& p, int64_t position, int64_t i, int64_t) {
    const double g = f(position, i);
    (p.spec.sync == nn::SyncGroup::kDense ? dense : expert) += g * g;
  });
  ASSERT_GT(dense, 0.0);
  ASSERT_GT(expert, 0.0);
  EXPECT_EQ(local_norm_squares(ctx_, store_, nn::SyncGroup::kDense), dense);
  EXPECT_EQ(local_norm_squares(ctx_, store_, nn::SyncGroup::kExpert), expert);

  const auto self = comm::make_self_communicator();
  const comm::Topology topology(*self, 1);
  EXPECT_EQ(norm_squares_contribution(ctx_, store_, topology, {}), dense + expert);
}

TEST_P(NormOf, LargeGradientsDoNotOverflow) {
  fill_gradients(store_, 0, [](int64_t p, int64_t i) { return p == 0 && i < 4 ? 1e30F : 0.0F; });
  const double large = 1e30F;
  EXPECT_EQ(local_norm_squares(ctx_, store_, nn::SyncGroup::kDense), 4 * large * large);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, NormOf, testing::Values(DType::kF32, DType::kBF16, DType::kF64),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST(Norm, DoesNotDependOnThreads) {
  Context one(Device::kCpu, 1), many(Device::kCpu, 3);
  nn::ParameterStore store(one, {spec_of("w", {301, 401}, DType::kF32)}, kModelSeed, 1, 0);
  fill_gradients(store, 0, [](int64_t, int64_t i) { return 1.0F / static_cast<float>(i + 3); });
  EXPECT_EQ(local_norm_squares(one, store, nn::SyncGroup::kDense),
            local_norm_squares(many, store, nn::SyncGroup::kDense));
}

TEST(Norm, AModelWithoutExpertsOrWithoutAnything) {
  Context ctx;
  nn::ParameterStore nothing(ctx, {}, kModelSeed, 1, 0);
  nn::ParameterStore dense(ctx, {spec_of("w", {2, 2}, DType::kF32)}, kModelSeed, 1, 0);
  fill_gradients(dense, 0, [](int64_t, int64_t) { return 3.0F; });
  EXPECT_EQ(local_norm_squares(ctx, nothing, nn::SyncGroup::kDense), 0.0);
  EXPECT_EQ(local_norm_squares(ctx, dense, nn::SyncGroup::kDense), 36.0);
  EXPECT_EQ(local_norm_squares(ctx, dense, nn::SyncGroup::kExpert), 0.0);
}

struct BadCase {
  std::string name;
  std::string parameter;
  int64_t element;
  float value;
};

class NotFinite : public testing::TestWithParam<BadCase> {};

TEST_P(NotFinite, IsSeenInTheNorm) {
  const BadCase& c = GetParam();
  Context ctx;
  nn::ParameterStore store(ctx, small_model(), kModelSeed, 2, 0);
  fill_gradients(store, 0, [](int64_t, int64_t) { return std::numeric_limits<float>::max(); });
  const nn::SyncGroup group = store.at(c.parameter).spec.sync;
  EXPECT_TRUE(std::isfinite(local_norm_squares(ctx, store, group)));
  store.at(c.parameter).gradient.data<float>()[c.element] = c.value;
  EXPECT_FALSE(std::isfinite(local_norm_squares(ctx, store, group)));
}

INSTANTIATE_TEST_SUITE_P(Places, NotFinite,
                         testing::Values(BadCase{"first_dense_nan", "embed", 0, kNan},
                                         BadCase{"last_dense_infinity", "head", 41, kInfinity},
                                         BadCase{"first_expert_minus_infinity", "up", 0,
                                                 -kInfinity},
                                         BadCase{"last_expert_nan", "down", 59, kNan}),
                         [](const auto& test) { return test.param.name; });

struct ClipCase {
  std::string name;
  double norm;
  double clip;
  double expected;
};

class ClipScale : public testing::TestWithParam<ClipCase> {};

TEST_P(ClipScale, IsExact) {
  const ClipCase& c = GetParam();
  EXPECT_EQ(clip_scale(c.norm, c.clip), c.expected);
}

INSTANTIATE_TEST_SUITE_P(
    Table, ClipScale,
    testing::Values(ClipCase{"below", 0.5, 1.0, 1.0}, ClipCase{"at", 1.0, 1.0, 1.0},
                    ClipCase{"above", 4.0, 1.0, 0.25},
                    ClipCase{"above_no_epsilon", 3.0, 1.0, 1.0 / 3},
                    ClipCase{"another_clip", 8.0, 2.0, 0.25}, ClipCase{"norm_zero", 0.0, 1.0, 1.0},
                    ClipCase{"off", 1e9, 0.0, 1.0}, ClipCase{"off_norm_zero", 0.0, 0.0, 1.0},
                    ClipCase{"off_infinite_norm", kInfinity, 0.0, 1.0},
                    ClipCase{"tiny_norm", 1e-300, 1.0, 1.0}),
    [](const auto& test) { return test.param.name; });

TEST(ClipScaleErrors, NamesWhatIsWrong) {
  EXPECT_THROW(clip_scale(1.0, -1.0), Error);
  EXPECT_THROW(clip_scale(kNan, 1.0), Error);
  EXPECT_THROW(clip_scale(kInfinity, 1.0), Error);
}

}  // namespace
}  // namespace spillway::optim
