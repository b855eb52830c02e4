#include "spillway/nn/parameter.h"

#include <gtest/gtest.h>

#include "spillway/autograd/tape.h"
#include "support/kernel_test.h"

namespace spillway::nn {
namespace {

using spillway::testing::same_bytes;
using spillway::testing::throws_with;
using spillway::testing::to_doubles;

ParameterSpec dense(const std::string& name, Shape shape, DType dtype = DType::kF32) {
  return {.name = name, .shape = shape, .dtype = dtype};
}
ParameterSpec expert(const std::string& name, Shape shape, DType dtype = DType::kF32) {
  return {.name = name, .shape = shape, .dtype = dtype, .sync = SyncGroup::kExpert};
}

std::vector<ParameterSpec> some_specs(DType dtype = DType::kF32) {
  return {dense("embed", {5, 3}, dtype), expert("experts.up", {8, 3, 2}, dtype),
          dense("norm", {7}, dtype), expert("experts.down", {8, 1, 5}, dtype)};
}

class StoreOverEp : public ::testing::TestWithParam<int64_t> {};

TEST_P(StoreOverEp, RanksHoldSlicesOfOneModel) {
  Context ctx;
  ParameterStore whole(ctx, some_specs(), 42, 1, 0);
  const int64_t ep = GetParam();
  for (int64_t rank = 0; rank < ep; ++rank) {
    ParameterStore store(ctx, some_specs(), 42, ep, rank);
    for (const Parameter& parameter : store.all()) {
      const Tensor& all = whole.at(parameter.spec.name).value;
      Tensor wanted = all;
      if (parameter.spec.sync == SyncGroup::kExpert) {
        const int64_t experts = all.dim(0) / ep;
        wanted = all.rows(rank * experts, (rank + 1) * experts);
      }
      EXPECT_EQ(parameter.value.shape(), wanted.shape());
      EXPECT_TRUE(same_bytes(parameter.value, wanted)) << parameter.spec.name << " rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, StoreOverEp, ::testing::Values(1, 2, 4, 8),
                         [](const auto& param) { return "ep" + std::to_string(param.param); });

class ParameterStoreTest : public ::testing::Test {
 protected:
  Context ctx_;
};

TEST_F(ParameterStoreTest, ElementsDependOnNameAndSeedNotOnTheOtherParameters) {
  ParameterStore all(ctx_, some_specs(), 1, 1, 0);
  ParameterStore alone(ctx_, {dense("norm", {7})}, 1, 1, 0);
  EXPECT_TRUE(same_bytes(all.at("norm").value, alone.at("norm").value));
  ParameterStore other_seed(ctx_, some_specs(), 2, 1, 0);
  EXPECT_FALSE(same_bytes(all.at("norm").value, other_seed.at("norm").value));
  ParameterStore other_name(ctx_, {dense("morn", {7})}, 1, 1, 0);
  EXPECT_FALSE(same_bytes(all.at("norm").value, other_name.at("morn").value));
}

TEST_F(ParameterStoreTest, NormalElementsHaveTheStandardDeviationAsked) {
  ParameterSpec spec = dense("w", {200, 500});
  spec.init.std = 0.5;
  ParameterStore store(ctx_, {spec}, 3, 1, 0);
  double sum = 0.0, squares = 0.0;
  for (const double x : to_doubles(store.at("w").value)) {
    sum += x;
    squares += x * x;
  }
  // Of 1e5 draws: the mean is off by 0.5 / sqrt(1e5) = 0.0016, the deviation by 0.0011; 5 sigma.
  EXPECT_NEAR(sum / 1e5, 0.0, 0.008);
  EXPECT_NEAR(std::sqrt(squares / 1e5), 0.5, 0.006);
}

TEST_F(ParameterStoreTest, OnesAndZeros) {
  ParameterSpec ones = dense("ones", {4});
  ones.init.kind = Init::Kind::kOnes;
  ParameterSpec zeros = dense("zeros", {4});
  zeros.init.kind = Init::Kind::kZeros;
  ParameterStore store(ctx_, {ones, zeros}, 3, 1, 0);
  EXPECT_EQ(to_doubles(store.at("ones").value), std::vector<double>(4, 1.0));
  EXPECT_EQ(to_doubles(store.at("zeros").value), std::vector<double>(4, 0.0));
}

TEST_F(ParameterStoreTest, BF16IsTheF32ModelRounded) {
  ParameterStore f32(ctx_, some_specs(), 1, 1, 0);
  ParameterStore bf(ctx_, some_specs(DType::kBF16), 1, 1, 0);
  for (const Parameter& parameter : f32.all()) {
    const Tensor& rounded = bf.at(parameter.spec.name).value;
    for (int64_t i = 0; i < rounded.numel(); ++i) {
      EXPECT_EQ(rounded.data<bf16>()[i].bits, bf16(parameter.value.data<float>()[i]).bits);
    }
  }
}

TEST_F(ParameterStoreTest, InitialValuesAreTheUnroundedOnesWhateverHasBecomeOfThem) {
  ParameterStore f32(ctx_, some_specs(), 1, 2, 1);
  ParameterStore bf(ctx_, some_specs(DType::kBF16), 1, 2, 1);
  for (const char* name : {"embed", "experts.up"}) {
    Parameter& parameter = bf.at(name);
    parameter.value.zero();
    const Tensor start = f32.at(name).value;
    const int64_t begin = 3, count = start.numel() - 4;
    Tensor part = Tensor::empty(ctx_, {count}, DType::kF32);
    bf.initial_values(ctx_, parameter, begin, part);
    EXPECT_TRUE(same_bytes(part, start.slice(begin, {count}))) << name;
  }
  Tensor too_long = Tensor::empty(ctx_, {15}, DType::kF32);
  EXPECT_TRUE(throws_with<Error>([&] { bf.initial_values(ctx_, bf.at("embed"), 1, too_long); },
                                 {"embed", "1 to 16", "0 to 15"}));
}

TEST(ParameterStoreThreads, ManyThreadsStartTheSameModel) {
  Context one(Device::kCpu, 1), many(Device::kCpu, 3);
  const std::vector<ParameterSpec> specs{dense("w", {301, 257}), expert("x", {4, 100, 301})};
  ParameterStore serial(one, specs, 7, 2, 1), parallel(many, specs, 7, 2, 1);
  for (const Parameter& parameter : serial.all()) {
    EXPECT_TRUE(same_bytes(parameter.value, parallel.at(parameter.spec.name).value));
  }
}

class StoreDtype : public ::testing::TestWithParam<DType> {};

TEST_P(StoreDtype, ValuesAreSlicesOfOneTensorAGroupWithTheOffsetsOfTheGradients) {
  Context ctx;
  ParameterStore store(ctx, some_specs(GetParam()), 1, 2, 0);
  for (const SyncGroup group : {SyncGroup::kDense, SyncGroup::kExpert}) {
    const Tensor& flat = store.flat_value(group);
    EXPECT_EQ(flat.dtype(), GetParam());
    EXPECT_EQ(flat.shape(), store.flat_gradient(group).shape());
    std::vector<double> expected(static_cast<size_t>(flat.numel()), 0.0);  // the gaps
    for (const Parameter& parameter : store.all()) {
      if (parameter.spec.sync != group) continue;
      EXPECT_TRUE(parameter.value.shares_storage(flat)) << parameter.spec.name;
      EXPECT_EQ(parameter.variable.value().raw_data(), parameter.value.raw_data());
      const std::vector<double> values = to_doubles(parameter.value);
      std::copy(values.begin(), values.end(), expected.begin() + parameter.gradient_offset);
    }
    EXPECT_EQ(to_doubles(flat), expected);
  }
}

TEST_P(StoreDtype, GradientsAreInTheAccumulatorDtypeAndCountedByPurpose) {
  Context ctx;
  ParameterStore store(ctx, some_specs(GetParam()), 1, 2, 0);
  // 15 -> 16 and 7 -> 16; 24 -> 32 and 20 -> 32.
  constexpr int64_t kElements = 16 + 16 + 32 + 32;
  EXPECT_EQ(ctx.allocator()->use(Purpose::kWeights).current_bytes,
            kElements * dtype_bytes(GetParam()));
  EXPECT_EQ(ctx.allocator()->use(Purpose::kGradients).current_bytes,
            kElements * dtype_bytes(accumulator_dtype(GetParam())));
  for (const Parameter& parameter : store.all()) {
    EXPECT_EQ(parameter.gradient.dtype(), accumulator_dtype(GetParam()));
    EXPECT_EQ(parameter.value.dtype(), GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(, StoreDtype, ::testing::Values(DType::kF32, DType::kF64, DType::kBF16),
                         [](const auto& param) { return std::string(dtype_name(param.param)); });

TEST_F(ParameterStoreTest, GradientsAreAlignedSlicesOfOneTensorAGroup) {
  ParameterStore store(ctx_, some_specs(), 1, 1, 0);
  int64_t end[2] = {0, 0};
  for (Parameter& parameter : store.all()) {
    const auto group = static_cast<size_t>(parameter.spec.sync);
    const Tensor& flat = store.flat_gradient(parameter.spec.sync);
    EXPECT_TRUE(parameter.gradient.shares_storage(flat));
    EXPECT_EQ(parameter.gradient_offset % ParameterStore::kGradientAlignment, 0);
    EXPECT_GE(parameter.gradient_offset, end[group]) << parameter.spec.name << " overlaps";
    end[group] = parameter.gradient_offset + parameter.gradient.numel();
    EXPECT_LE(end[group], flat.numel());
    EXPECT_EQ(parameter.gradient.data<float>(), flat.data<float>() + parameter.gradient_offset);
    // The leaf adds to the same memory.
    EXPECT_EQ(parameter.variable.grad().raw_data(), parameter.gradient.raw_data());
  }
}

TEST_F(ParameterStoreTest, BackwardFillsTheFlatGradientAndZeroGradientsEmptiesIt) {
  ParameterStore store(ctx_, some_specs(), 1, 1, 0);
  autograd::Tape tape(ctx_);
  const autograd::Variable& norm = store.at("norm").variable;
  const Tensor ones = spillway::testing::tensor_of<float>(ctx_, {7}, std::vector<float>(7, 1.0F));
  tape.backward(
      tape.record("op", ones, {norm}, [](autograd::Backward& b) { b.give(0, b.take_grad()); }),
      ones.clone(ctx_));
  const Tensor& flat = store.flat_gradient(SyncGroup::kDense);
  double sum = 0.0;
  for (const double g : to_doubles(flat)) sum += g;
  EXPECT_EQ(sum, 7.0);
  EXPECT_EQ(flat.data<float>()[store.at("norm").gradient_offset + 6], 1.0F);
  store.zero_gradients(ctx_);
  EXPECT_EQ(to_doubles(flat), std::vector<double>(static_cast<size_t>(flat.numel()), 0.0));
}

TEST_F(ParameterStoreTest, AModelWithoutExpertsHasAnEmptyExpertGradient) {
  ParameterStore store(ctx_, {dense("w", {3})}, 1, 4, 3);
  EXPECT_EQ(store.flat_gradient(SyncGroup::kExpert).numel(), 0);
  EXPECT_NO_THROW(store.zero_gradients(ctx_));
}

TEST_F(ParameterStoreTest, KeepsTheOrderOfTheSpecs) {
  ParameterStore store(ctx_, some_specs(), 1, 1, 0);
  std::vector<std::string> names;
  for (const Parameter& parameter : store.all()) names.push_back(parameter.spec.name);
  EXPECT_EQ(names, (std::vector<std::string>{"embed", "experts.up", "norm", "experts.down"}));
}

TEST_F(ParameterStoreTest, ErrorsNameTheParameter) {
  const auto make = [this](std::vector<ParameterSpec> specs, int64_t ep) {
    ParameterStore store(ctx_, specs, 1, ep, 0);
    store.at("w2");
  };
  EXPECT_TRUE(throws_with<Error>([&] { make({dense("w", {3})}, 1); }, {"'w2'"}));
  EXPECT_TRUE(throws_with<Error>(
      [&] {
        make({dense("w", {3}), dense("w", {4})}, 1);
      },
      {"named w"}));
  EXPECT_TRUE(throws_with<Error>(
      [&] {
        make({dense("w", {3}), dense("v", {4}, DType::kBF16)}, 1);
      },
      {"v", "bf16", "f32"}));
  EXPECT_TRUE(throws_with<Error>(
      [&] {
        make({expert("x", {6, 1, 1})}, 4);
      },
      {"x", "[6, 1, 1]", "ep = 4"}));
}

}  // namespace
}  // namespace spillway::nn
