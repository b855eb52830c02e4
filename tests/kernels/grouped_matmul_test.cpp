#include "spillway/kernels/grouped_matmul.h"

#include "kernels/matrix_testing.h"

namespace spillway::kernels {
namespace {

using testing::Guarded;
using testing::guarded_random;

/// Group sizes, the gap behind each, and the widths of the weights.
struct Pattern {
  const char* name;
  std::vector<int64_t> rows;
  int64_t gap;
  int64_t n, k;
};
struct Case {
  DType dtype;
  Pattern pattern;
};

std::vector<Case> grid() {
  const Pattern patterns[] = {
      {"none", {}, 0, 4, 4},
      {"all_empty", {0, 0, 0}, 0, 4, 4},
      {"one_row", {1}, 0, 1, 1},
      {"odd", {3, 0, 33, 7}, 5, 17, 9},
      {"aligned", {32, 64, 128}, 0, 64, 32},
      {"aligned_with_gaps", {8, 24, 0, 40}, 8, 32, 64},
      {"one_hot", {0, 600, 0, 1}, 3, 24, 40},
      {"hot_wide", {1, 290, 31}, 1, 300, 16},
      {"many", std::vector<int64_t>(17, 2), 2, 8, 24},
  };
  std::vector<Case> cases;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (const Pattern& pattern : patterns) cases.push_back({dtype, pattern});
  }
  return cases;
}

/// Groups laid out with gaps in a buffer with some rows to spare.
struct Layout {
  explicit Layout(const Pattern& pattern) : rows(pattern.rows) {
    for (const int64_t size : rows) {
      begin.push_back(capacity);
      capacity += size + pattern.gap;
    }
    capacity += 3;
  }
  RowGroups groups() const { return {begin, rows}; }
  /// The group of each row of the buffer; -1 for none.
  std::vector<int> owner() const {
    std::vector<int> of(static_cast<size_t>(capacity), -1);
    for (size_t g = 0; g < rows.size(); ++g) {
      std::fill_n(of.begin() + begin[g], rows[g], static_cast<int>(g));
    }
    return of;
  }
  std::vector<int64_t> begin, rows;
  int64_t capacity = 0;
};

/// Random rows in the groups, NaN in all others.
Guarded rows_of_groups(Context& ctx, const Layout& layout, int64_t width, DType dtype,
                       uint64_t seed, int64_t capacity) {
  Guarded x(ctx, {capacity, width}, dtype);
  std::vector<double> values = testing::to_doubles(x.tensor);
  const std::vector<int> owner = layout.owner();
  const Rng rng(seed);
  for (size_t i = 0; i < owner.size() * static_cast<size_t>(width); ++i) {
    if (owner[i / static_cast<size_t>(width)] >= 0) values[i] = rng.normal_at(i);
  }
  testing::set_values(x.tensor, values);
  return x;
}

class GroupedMatmulTest : public ::testing::TestWithParam<Case> {
 protected:
  DType dtype() const { return GetParam().dtype; }
  const Pattern& pattern() const { return GetParam().pattern; }
  int64_t num_groups() const { return static_cast<int64_t>(pattern().rows.size()); }

  Guarded weights(Context& ctx) const {
    return guarded_random(ctx, {num_groups(), pattern().n, pattern().k}, dtype(), 7);
  }

  /// y or dx for a buffer of `capacity` rows; 1 as the former content.
  Guarded multiply(Context& ctx, bool dgrad, int64_t capacity) const {
    const Layout layout(pattern());
    const int64_t in_width = dgrad ? pattern().n : pattern().k;
    const int64_t out_width = dgrad ? pattern().k : pattern().n;
    const Guarded in = rows_of_groups(ctx, layout, in_width, dtype(), 5, capacity);
    const Guarded w = weights(ctx);
    Guarded out(ctx, {capacity, out_width}, dtype());
    testing::set_values(out.tensor,
                        std::vector<double>(static_cast<size_t>(out.tensor.numel()), 1.0));
    if (dgrad) {
      grouped_matmul_dgrad(ctx, in.tensor, w.tensor, layout.groups(), out.tensor);
    } else {
      grouped_matmul(ctx, in.tensor, w.tensor, layout.groups(), out.tensor);
    }
    EXPECT_TRUE(out.intact()) << "out";
    return out;
  }

  Guarded weight_gradient(Context& ctx, int64_t capacity) const {
    const Layout layout(pattern());
    const Guarded dy = rows_of_groups(ctx, layout, pattern().n, dtype(), 5, capacity);
    const Guarded x = rows_of_groups(ctx, layout, pattern().k, dtype(), 6, capacity);
    Guarded dw = guarded_random(ctx, {num_groups(), pattern().n, pattern().k},
                                accumulator_dtype(dtype()), 8);
    grouped_matmul_wgrad(ctx, dy.tensor, x.tensor, layout.groups(), dw.tensor);
    EXPECT_TRUE(dw.intact()) << "dw";
    return dw;
  }

  void expect_rows(bool dgrad) const {
    Context ctx(Device::kCpu, 2);
    const Layout layout(pattern());
    const int64_t in_width = dgrad ? pattern().n : pattern().k;
    const int64_t out_width = dgrad ? pattern().k : pattern().n;
    const Guarded in = rows_of_groups(ctx, layout, in_width, dtype(), 5, layout.capacity);
    const std::vector<double> x = testing::to_doubles(in.tensor);
    const std::vector<double> w = testing::to_doubles(weights(ctx).tensor);
    const std::vector<double> got =
        testing::to_doubles(multiply(ctx, dgrad, layout.capacity).tensor);
    const std::vector<int> owner = layout.owner();
    for (int64_t r = 0; r < layout.capacity; ++r) {
      const int64_t g = owner[static_cast<size_t>(r)];
      for (int64_t j = 0; j < out_width; ++j) {
        const double value = got[static_cast<size_t>(r * out_width + j)];
        if (g < 0) {
          ASSERT_EQ(value, 1.0) << "row " << r << " of no group was written";
          continue;
        }
        double want = 0.0;
        double magnitude = 0.0;
        for (int64_t l = 0; l < in_width; ++l) {
          const int64_t n = dgrad ? l : j;
          const int64_t k = dgrad ? j : l;
          const double product = x[static_cast<size_t>(r * in_width + l)] *
                                 w[static_cast<size_t>((g * pattern().n + n) * pattern().k + k)];
          want += product;
          magnitude += std::abs(product);
        }
        ASSERT_NEAR(value, want, testing::sum_tolerance(dtype(), dtype(), in_width, magnitude))
            << "row " << r << " of group " << g << ", column " << j;
      }
    }
  }
};

TEST_P(GroupedMatmulTest, ForwardAgreesWithDoubles) { expect_rows(/*dgrad=*/false); }
TEST_P(GroupedMatmulTest, DgradAgreesWithDoubles) { expect_rows(/*dgrad=*/true); }

TEST_P(GroupedMatmulTest, WgradAddsSumsOfEachGroup) {
  Context ctx(Device::kCpu, 2);
  const Layout layout(pattern());
  const auto [name, rows, gap, n, k] = pattern();
  const DType sums = accumulator_dtype(dtype());
  const std::vector<double> dy =
      testing::to_doubles(rows_of_groups(ctx, layout, n, dtype(), 5, layout.capacity).tensor);
  const std::vector<double> x =
      testing::to_doubles(rows_of_groups(ctx, layout, k, dtype(), 6, layout.capacity).tensor);
  const std::vector<double> former =
      testing::to_doubles(guarded_random(ctx, {num_groups(), n, k}, sums, 8).tensor);
  const std::vector<double> got = testing::to_doubles(weight_gradient(ctx, layout.capacity).tensor);
  for (int64_t g = 0; g < num_groups(); ++g) {
    const int64_t first = layout.begin[static_cast<size_t>(g)];
    const int64_t size = layout.rows[static_cast<size_t>(g)];
    for (int64_t i = 0; i < n * k; ++i) {
      const auto at = static_cast<size_t>(g * n * k + i);
      double want = former[at];
      double magnitude = std::abs(want);
      for (int64_t r = first; r < first + size; ++r) {
        const double product =
            dy[static_cast<size_t>(r * n + i / k)] * x[static_cast<size_t>(r * k + i % k)];
        want += product;
        magnitude += std::abs(product);
      }
      // A group without rows must leave its gradient bit for bit.
      const double tolerance =
          size == 0 ? 0.0 : testing::sum_tolerance(dtype(), sums, size, magnitude);
      ASSERT_NEAR(got[at], want, tolerance) << "group " << g << ", element " << i;
    }
  }
}

TEST_P(GroupedMatmulTest, CapacityChangesNoBit) {
  Context ctx(Device::kCpu, 2);
  const int64_t capacity = Layout(pattern()).capacity;
  for (const bool dgrad : {false, true}) {
    const Guarded small = multiply(ctx, dgrad, capacity);
    const Guarded large = multiply(ctx, dgrad, 2 * capacity);
    EXPECT_TRUE(testing::same_bytes(small.tensor, large.tensor.rows(0, capacity)));
  }
  EXPECT_TRUE(testing::same_bytes(weight_gradient(ctx, capacity).tensor,
                                  weight_gradient(ctx, 2 * capacity).tensor));
}

TEST_P(GroupedMatmulTest, ThreadsChangeNoBit) {
  const int64_t capacity = Layout(pattern()).capacity;
  for (const bool dgrad : {false, true}) {
    Context two(Device::kCpu, 2);
    const Guarded parallel = multiply(two, dgrad, capacity);
    const Guarded parallel_dw = weight_gradient(two, capacity);
    Context one(Device::kCpu, 1);
    EXPECT_TRUE(testing::same_bytes(parallel.tensor, multiply(one, dgrad, capacity).tensor));
    EXPECT_TRUE(testing::same_bytes(parallel_dw.tensor, weight_gradient(one, capacity).tensor));
  }
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return str(dtype_name(info.param.dtype), "_", info.param.pattern.name);
}
INSTANTIATE_TEST_SUITE_P(Grid, GroupedMatmulTest, ::testing::ValuesIn(grid()), case_name);

class GroupedMatmulErrorTest : public ::testing::Test {
 protected:
  std::string forward(Shape x_shape, Shape w_shape, Shape y_shape, std::vector<int64_t> begin,
                      std::vector<int64_t> rows, DType w_dtype = DType::kF32) {
    const Tensor x = Tensor::zeros(ctx_, x_shape, DType::kF32);
    const Tensor w = Tensor::zeros(ctx_, w_shape, w_dtype);
    Tensor y = Tensor::zeros(ctx_, y_shape, DType::kF32);
    return testing::error_of([&] { grouped_matmul(ctx_, x, w, {begin, rows}, y); });
  }
  Context ctx_;
};

TEST_F(GroupedMatmulErrorTest, WidthsDiffer) {
  testing::expect_holds(forward({4, 3}, {1, 5, 2}, {4, 5}, {0}, {4}),
                        {"grouped_matmul", "x has shape [4, 3]", "[4, 2]"});
  testing::expect_holds(forward({4, 2}, {1, 5, 2}, {4, 6}, {0}, {4}),
                        {"y has shape [4, 6]", "[4, 5]"});
}

TEST_F(GroupedMatmulErrorTest, NumberOfGroupsDiffers) {
  testing::expect_holds(forward({4, 2}, {3, 5, 2}, {4, 5}, {0}, {4}),
                        {"w has shape [3, 5, 2]", "1 groups"});
}

TEST_F(GroupedMatmulErrorTest, GroupEndsPastTheBuffer) {
  testing::expect_holds(forward({4, 2}, {2, 5, 2}, {4, 5}, {0, 2}, {2, 3}),
                        {"group 1", "[2, 5)", "4 rows"});
}

TEST_F(GroupedMatmulErrorTest, GroupsOverlap) {
  testing::expect_holds(forward({4, 2}, {2, 5, 2}, {4, 5}, {0, 1}, {2, 1}), {"group 1"});
}

TEST_F(GroupedMatmulErrorTest, WeightDtypeDiffers) {
  testing::expect_holds(forward({4, 2}, {1, 5, 2}, {4, 5}, {0}, {4}, DType::kBF16),
                        {"w is bf16", "f32"});
}

TEST_F(GroupedMatmulErrorTest, WeightGradientNeedsTheAccumulator) {
  const Tensor dy = Tensor::zeros(ctx_, {4, 2}, DType::kBF16);
  Tensor dw = Tensor::zeros(ctx_, {1, 2, 2}, DType::kBF16);
  const std::vector<int64_t> begin{0};
  const std::vector<int64_t> rows{4};
  testing::expect_holds(testing::error_of([&] {
                          grouped_matmul_wgrad(ctx_, dy, dy, {begin, rows}, dw);
                        }),
                        {"dw is bf16", "f32"});
}

}  // namespace
}  // namespace spillway::kernels
