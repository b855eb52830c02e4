#pragma once
// Gradients against central differences, in double.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "spillway/tensor/tensor.h"

namespace spillway::testing {

/// Bound of the relative error. Central differences with a step of 1e-5 are good to about 1e-10 of
/// the function's scale (truncation h^2, rounding 1e-16 / h); four digits are left for functions
/// that are larger or more curved than their gradients.
inline constexpr double kGradientTolerance = 1e-6;
inline constexpr double kGradientStep = 1e-5;

/// (f() with x + step - f() with x - step) / (2 step), x being an element that f reads; it is as
/// before afterwards.
template <typename F>
double central_difference(double& x, double step, F&& f) {
  const double kept = x;
  x = kept + step;
  const double above = f();
  x = kept - step;
  const double below = f();
  x = kept;
  return (above - below) / (2.0 * step);
}

/// Compares `analytic` with (f(x + h e_i) - f(x - h e_i)) / 2h for every element of the f64 tensor
/// x. f reads x through the shared storage; x is as before afterwards. Errors are relative to the
/// larger of the two values, but at least to a thousandth of the largest gradient. A gradient that
/// is zero everywhere fails: it proves nothing.
inline ::testing::AssertionResult gradient_matches(const std::function<double(const Tensor&)>& f,
                                                   Tensor x, const Tensor& analytic) {
  if (x.shape() != analytic.shape()) {
    return ::testing::AssertionFailure()
           << "gradient of shape " << analytic.shape() << " for x " << x.shape();
  }
  double largest = 0.0;
  for (const double g : analytic.span<double>()) largest = std::max(largest, std::abs(g));
  if (largest == 0.0) return ::testing::AssertionFailure() << "the gradient is zero everywhere";
  for (int64_t i = 0; i < x.numel(); ++i) {
    double& element = x.data<double>()[i];
    const double step = kGradientStep * std::max(1.0, std::abs(element));
    const double numeric = central_difference(element, step, [&] { return f(x); });
    const double given = analytic.data<double>()[i];
    const double scale = std::max({std::abs(numeric), std::abs(given), 1e-3 * largest});
    // Written so that NaN fails.
    if (!(std::abs(numeric - given) <= kGradientTolerance * scale)) {
      return ::testing::AssertionFailure()
             << "element " << i << " of " << x.shape() << ": gradient " << given
             << ", central difference " << numeric;
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace spillway::testing
