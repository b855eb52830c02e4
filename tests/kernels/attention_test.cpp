#include "spillway/kernels/attention.h"

#include "kernels/attention_reference.h"
#include "kernels/matrix_testing.h"

namespace spillway::kernels {
namespace {

using testing::Guarded;
using testing::guarded_random;
using Reference = testing::AttentionReference;
using Size = testing::AttentionSize;

struct Case {
  DType dtype;
  Size size;
};

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto& [dtype, s] = info.param;
  return str(dtype_name(dtype), "_B", s.batch, "_S", s.length, "_Hq", s.q_heads, "_Hk", s.kv_heads,
             "_D", s.head);
}

std::vector<Case> grid() {
  // Blocks have 64 query rows: one, below, exact, one more, two and one more, many.
  const Size sizes[] = {{1, 1, 1, 1, 16},  {2, 7, 2, 1, 16},   {1, 64, 4, 2, 32},
                        {2, 65, 4, 1, 24}, {1, 129, 2, 2, 64}, {1, 256, 2, 1, 32},
                        {1, 33, 6, 3, 48}, {1, 70, 1, 1, 128}, {3, 5, 4, 4, 18}};
  std::vector<Case> cases;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (const Size& size : sizes) cases.push_back({dtype, size});
  }
  return cases;
}

// Errors relative to the largest element of a result. Softmax weights carry a relative error of a
// few units (exp: 2e-7 in fp32), sums over 256 keys some more. In bf16 (unit 2^-8) weights, and in
// backward their gradients and `out`, are rounded before the products, each result once more.
double tolerance(DType dtype) {
  constexpr double kF32 = 5e-6;
  constexpr double kF64 = 1e-13;
  constexpr double kBF16 = 2e-2;
  return dtype == DType::kF64 ? kF64 : dtype == DType::kF32 ? kF32 : kBF16;
}

void expect_close(const Tensor& got, const std::vector<double>& want, double relative,
                  const char* name) {
  const std::vector<double> values = testing::to_doubles(got);
  double largest = 1e-30;
  for (const double value : want) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(values[i], want[i], relative * largest) << name << " element " << i;
  }
}

/// Tensors of a case, all between guards.
struct Inputs {
  Inputs(Context& ctx, const Case& c)
      : size(c.size),
        q(guarded_random(ctx, q_shape(), c.dtype, 1, 2.0)),
        k(guarded_random(ctx, kv_shape(), c.dtype, 2)),
        v(guarded_random(ctx, kv_shape(), c.dtype, 3)),
        dout(guarded_random(ctx, q_shape(), c.dtype, 4)),
        out(ctx, q_shape(), c.dtype),
        lse(ctx, {size.batch, size.q_heads, size.length}, accumulator_dtype(c.dtype)),
        dq(ctx, q_shape(), c.dtype),
        dk(ctx, kv_shape(), c.dtype),
        dv(ctx, kv_shape(), c.dtype) {}
  Shape q_shape() const { return {size.batch, size.length, size.q_heads, size.head}; }
  Shape kv_shape() const { return {size.batch, size.length, size.kv_heads, size.head}; }
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(size.head)); }
  void forward(Context& ctx) {
    attention(ctx, {.q = q.tensor,
                    .k = k.tensor,
                    .v = v.tensor,
                    .out = out.tensor,
                    .lse = lse.tensor,
                    .scale = scale()});
  }
  void backward(Context& ctx) {
    attention_backward(ctx, {.dout = dout.tensor,
                             .q = q.tensor,
                             .k = k.tensor,
                             .v = v.tensor,
                             .out = out.tensor,
                             .lse = lse.tensor,
                             .dq = dq.tensor,
                             .dk = dk.tensor,
                             .dv = dv.tensor,
                             .scale = scale()});
  }

  Size size;
  Guarded q, k, v, dout, out, lse, dq, dk, dv;
};

class AttentionTest : public ::testing::TestWithParam<Case> {};

TEST_P(AttentionTest, ForwardAgreesWithDoubles) {
  Context ctx(Device::kCpu, 2);
  Inputs in(ctx, GetParam());
  in.forward(ctx);
  Reference want(in.size, in.scale(), in.q.tensor, in.k.tensor, in.v.tensor);
  want.forward();
  expect_close(in.out.tensor, want.out, tolerance(GetParam().dtype), "out");
  // lse is never rounded to bf16.
  const DType sums = accumulator_dtype(GetParam().dtype);
  expect_close(in.lse.tensor, want.lse, tolerance(sums), "lse");
  EXPECT_TRUE(in.out.intact()) << "out";
  EXPECT_TRUE(in.lse.intact()) << "lse";
}

TEST_P(AttentionTest, BackwardAgreesWithDoubles) {
  Context ctx(Device::kCpu, 2);
  Inputs in(ctx, GetParam());
  in.forward(ctx);
  in.backward(ctx);
  Reference want(in.size, in.scale(), in.q.tensor, in.k.tensor, in.v.tensor);
  want.backward(testing::to_doubles(in.dout.tensor));
  const double relative = tolerance(GetParam().dtype);
  if (in.size.length > 1) {  // with one key the gradients of q and k are 0
    expect_close(in.dq.tensor, want.dq, relative, "dq");
    expect_close(in.dk.tensor, want.dk, relative, "dk");
  }
  expect_close(in.dv.tensor, want.dv, relative, "dv");
  EXPECT_TRUE(in.dq.intact()) << "dq";
  EXPECT_TRUE(in.dk.intact()) << "dk";
  EXPECT_TRUE(in.dv.intact()) << "dv";
}

TEST_P(AttentionTest, ThreadsChangeNoBit) {
  Context two(Device::kCpu, 2);
  Inputs parallel(two, GetParam());
  parallel.forward(two);
  parallel.backward(two);
  Context one(Device::kCpu, 1);
  Inputs serial(one, GetParam());
  serial.forward(one);
  serial.backward(one);
  EXPECT_TRUE(testing::same_bytes(parallel.out.tensor, serial.out.tensor));
  EXPECT_TRUE(testing::same_bytes(parallel.lse.tensor, serial.lse.tensor));
  EXPECT_TRUE(testing::same_bytes(parallel.dq.tensor, serial.dq.tensor));
  EXPECT_TRUE(testing::same_bytes(parallel.dk.tensor, serial.dk.tensor));
  EXPECT_TRUE(testing::same_bytes(parallel.dv.tensor, serial.dv.tensor));
}

INSTANTIATE_TEST_SUITE_P(Grid, AttentionTest, ::testing::ValuesIn(grid()), case_name);

class AttentionDtypeTest : public ::testing::TestWithParam<DType> {};

// Later keys and values must not reach a query: neither their values nor NaN.
TEST_P(AttentionDtypeTest, LaterTokensDoNotMatter) {
  Context ctx;
  Inputs in(ctx, {GetParam(), {1, 100, 2, 1, 16}});
  in.forward(ctx);
  const Tensor before = in.out.tensor.clone(ctx);
  constexpr int64_t kSplit = 64;  // of a block, so that the first one has no later key at all
  std::vector<double> k = testing::to_doubles(in.k.tensor);
  std::fill(k.begin() + kSplit * 16, k.end(), std::numeric_limits<double>::quiet_NaN());
  testing::set_values(in.k.tensor, k);
  in.forward(ctx);
  const Shape rows{100, 32};
  EXPECT_TRUE(testing::same_bytes(before.view(rows).rows(0, kSplit),
                                  in.out.tensor.view(rows).rows(0, kSplit)));
  EXPECT_TRUE(std::isnan(testing::to_doubles(in.out.tensor).back()));
}

// Heads lie side by side in memory: NaN in one kv head and its queries stays with them.
TEST_P(AttentionDtypeTest, HeadsDoNotMix) {
  constexpr int64_t kHead = 24;
  const auto results = [](Inputs& in) {
    Context ctx;
    in.forward(ctx);
    in.backward(ctx);
    std::vector<std::vector<double>> columns;  // what belongs to query heads 0, 1 and kv head 0
    for (const Guarded* result : {&in.out, &in.dq, &in.dk, &in.dv}) {
      const std::vector<double> all = testing::to_doubles(result->tensor);
      const int64_t heads = result->tensor.dim(2);
      std::vector<double>& mine = columns.emplace_back();
      for (size_t i = 0; i < all.size(); ++i) {
        if (static_cast<int64_t>(i) / kHead % heads < heads / 2) mine.push_back(all[i]);
      }
    }
    return columns;
  };
  Context ctx;
  Inputs in(ctx, {GetParam(), {2, 37, 4, 2, kHead}});
  const auto clean = results(in);
  for (Guarded* input : {&in.q, &in.k, &in.v, &in.dout}) {
    std::vector<double> values = testing::to_doubles(input->tensor);
    const int64_t heads = input->tensor.dim(2);
    for (size_t i = 0; i < values.size(); ++i) {
      if (static_cast<int64_t>(i) / kHead % heads >= heads / 2) {
        values[i] = std::numeric_limits<double>::quiet_NaN();
      }
    }
    testing::set_values(input->tensor, values);
  }
  EXPECT_EQ(clean, results(in));
}

// Scores far past the range of exp: the maximum is taken off first.
TEST_P(AttentionDtypeTest, LargeScoresStayFinite) {
  Context ctx;
  Inputs in(ctx, {GetParam(), {1, 70, 1, 1, 16}});
  copy(testing::random_tensor(ctx, in.q_shape(), GetParam(), 1, 200.0), in.q.tensor);
  in.forward(ctx);
  in.backward(ctx);
  for (const Guarded* result : {&in.out, &in.lse, &in.dq, &in.dk, &in.dv}) {
    for (const double value : testing::to_doubles(result->tensor))
      ASSERT_TRUE(std::isfinite(value));
  }
}

TEST_P(AttentionDtypeTest, EmptyBatchOrSequence) {
  Context ctx;
  for (const Size size : {Size{0, 5, 2, 1, 16}, Size{2, 0, 2, 1, 16}}) {
    Inputs in(ctx, {GetParam(), size});
    EXPECT_NO_THROW(in.forward(ctx));
    EXPECT_NO_THROW(in.backward(ctx));
    EXPECT_TRUE(in.dk.intact()) << "dk";
  }
}

// Equal keys give equal weights: query i is the mean of values 0..i, at a length of many blocks.
TEST_P(AttentionDtypeTest, LongSequenceOfEqualKeys) {
  constexpr int64_t kLength = 2048;
  Context ctx(Device::kCpu, 2);
  Inputs in(ctx, {GetParam(), {1, kLength, 1, 1, 16}});
  testing::set_values(in.k.tensor, std::vector<double>(kLength * 16, 0.5));
  in.forward(ctx);
  const std::vector<double> v = testing::to_doubles(in.v.tensor);
  std::vector<double> mean(kLength * 16);
  double sum[16] = {};
  for (size_t i = 0; i < kLength * 16; ++i) {
    sum[i % 16] += v[i];
    mean[i] = sum[i % 16] / static_cast<double>(i / 16 + 1);
  }
  expect_close(in.out.tensor, mean, tolerance(GetParam()), "out");
}

std::string dtype_case_name(const ::testing::TestParamInfo<DType>& info) {
  return testing::dtype_label(info.param);
}
INSTANTIATE_TEST_SUITE_P(Dtypes, AttentionDtypeTest,
                         ::testing::Values(DType::kF32, DType::kF64, DType::kBF16),
                         dtype_case_name);

// The loss sum(out * dout) moved by finite differences: independent of the chain rule above.
TEST(AttentionGradientTest, MatchesFiniteDifferences) {
  constexpr double kStep = 1e-5;
  constexpr double kTolerance = 1e-8;  // kStep^2 times third derivatives of order 10
  Context ctx;
  Inputs in(ctx, {DType::kF64, {1, 5, 4, 2, 2}});
  in.forward(ctx);
  in.backward(ctx);
  const auto loss = [&] {
    in.forward(ctx);
    double sum = 0.0;
    for (int64_t i = 0; i < in.out.tensor.numel(); ++i) {
      sum += in.out.tensor.data<double>()[i] * in.dout.tensor.data<double>()[i];
    }
    return sum;
  };
  for (const auto& [x, dx] : {std::pair{&in.q, &in.dq}, {&in.k, &in.dk}, {&in.v, &in.dv}}) {
    for (int64_t i = 0; i < x->tensor.numel(); ++i) {
      double& value = x->tensor.data<double>()[i];
      const double before = value;
      value = before + kStep;
      const double above = loss();
      value = before - kStep;
      const double below = loss();
      value = before;
      ASSERT_NEAR(dx->tensor.data<double>()[i], (above - below) / (2 * kStep), kTolerance);
    }
  }
}

class AttentionErrorTest : public ::testing::Test {
 protected:
  std::string forward(Shape q_shape, Shape k_shape, Shape lse_shape, DType lse_dtype = DType::kF32,
                      double scale = 1.0) {
    const Tensor q = Tensor::zeros(ctx_, q_shape, DType::kBF16);
    const Tensor k = Tensor::zeros(ctx_, k_shape, DType::kBF16);
    Tensor out = q.clone(ctx_);
    Tensor lse = Tensor::zeros(ctx_, lse_shape, lse_dtype);
    return testing::error_of(
        [&] { attention(ctx_, {.q = q, .k = k, .v = k, .out = out, .lse = lse, .scale = scale}); });
  }
  Context ctx_;
};

TEST_F(AttentionErrorTest, AcceptsGoodShapes) {
  EXPECT_EQ(forward({1, 3, 4, 8}, {1, 3, 2, 8}, {1, 4, 3}), "");
}

TEST_F(AttentionErrorTest, HeadsDoNotDivide) {
  testing::expect_holds(forward({1, 3, 4, 8}, {1, 3, 3, 8}, {1, 4, 3}),
                        {"attention", "4 query heads", "3 kv heads"});
}

TEST_F(AttentionErrorTest, NoKvHeads) {
  testing::expect_holds(forward({1, 3, 4, 8}, {1, 3, 0, 8}, {1, 4, 3}), {"0 kv heads"});
}

TEST_F(AttentionErrorTest, LengthsDiffer) {
  testing::expect_holds(forward({1, 3, 4, 8}, {1, 5, 2, 8}, {1, 4, 3}),
                        {"k has shape [1, 5, 2, 8]", "[1, 3, 2, 8]"});
}

TEST_F(AttentionErrorTest, LogSumExpShapeAndDtype) {
  testing::expect_holds(forward({1, 3, 4, 8}, {1, 3, 2, 8}, {1, 3, 4}),
                        {"lse has shape [1, 3, 4]", "[1, 4, 3]"});
  testing::expect_holds(forward({1, 3, 4, 8}, {1, 3, 2, 8}, {1, 4, 3}, DType::kBF16),
                        {"lse is bf16", "f32"});
}

TEST_F(AttentionErrorTest, ScaleMustBePositive) {
  testing::expect_holds(forward({1, 3, 4, 8}, {1, 3, 2, 8}, {1, 4, 3}, DType::kF32, -0.5),
                        {"scale is -0.5"});
}

TEST_F(AttentionErrorTest, GradientShapeDiffers) {
  Inputs in(ctx_, {DType::kF32, {1, 3, 2, 1, 8}});
  in.dk.tensor = Tensor::zeros(ctx_, {1, 3, 2, 8}, DType::kF32);
  testing::expect_holds(testing::error_of([&] { in.backward(ctx_); }),
                        {"attention_backward", "dk has shape [1, 3, 2, 8]", "[1, 3, 1, 8]"});
}

}  // namespace
}  // namespace spillway::kernels
