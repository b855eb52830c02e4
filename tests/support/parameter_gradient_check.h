#pragma once
// The gradients of a module's parameters against central differences in double.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "spillway/autograd/tape.h"
#include "spillway/core/rng.h"
#include "spillway/nn/parameter.h"
#include "support/gradient_check.h"

namespace spillway::testing {

/// Bound of |tape - difference| / |difference|, L2 over the sampled elements of one parameter.
/// Central differences with the step below of a scalar of size 1 to 10 are off by 1e-10 or less an
/// element (rounding 1e-15 / h, truncation h^2 times the third derivative), and the gradients here
/// are 1e-2 and more: measured 7e-9. A wrong term is off by 1e-3 and more.
inline constexpr double kParameterGradientTolerance = 1e-7;
inline constexpr double kParameterStep = 1e-5;

/// A scalar [1] as a function of the parameters, recorded on the tape.
using ScalarFunction = std::function<autograd::Variable(autograd::Tape&)>;

/// `count` different elements of [0, size), or all of them.
inline std::vector<int64_t> sampled_elements(int64_t size, int64_t count, uint64_t seed) {
  std::vector<int64_t> elements(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) elements[static_cast<size_t>(i)] = i;
  if (size <= count) return elements;
  Rng rng(seed);
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    std::swap(elements[i], elements[i + rng.below(elements.size() - i)]);
  }
  elements.resize(static_cast<size_t>(count));
  return elements;
}

/// Fills the gradient buffers with one backward pass, then compares `count` elements of every
/// parameter (all when it has no more). Fails for a parameter whose sample has no gradient, unless
/// its name is among `unused`: then the gradient must be exactly zero.
inline ::testing::AssertionResult parameter_gradients_match(
    Context& ctx, nn::ParameterStore& store, const ScalarFunction& f, int64_t count = 24,
    const std::vector<std::string>& unused = {}) {
  store.zero_gradients(ctx);
  {
    autograd::Tape tape(ctx);
    tape.backward(f(tape));
  }
  const auto value = [&] {
    autograd::Tape tape(ctx, false);
    return f(tape).value().data<double>()[0];
  };
  uint64_t seed = 0;
  for (nn::Parameter& parameter : store.all()) {
    double error = 0.0, size = 0.0;
    for (const int64_t i : sampled_elements(parameter.value.numel(), count, ++seed)) {
      double& element = parameter.value.data<double>()[i];
      const double difference = central_difference(element, kParameterStep, value);
      const double given = parameter.gradient.data<double>()[i];
      error += (given - difference) * (given - difference);
      size += difference * difference;
    }
    const std::string& name = parameter.spec.name;
    if (std::find(unused.begin(), unused.end(), name) != unused.end()) {
      if (error == 0.0 && size == 0.0) continue;
      return ::testing::AssertionFailure() << name << " has a gradient and should have none";
    }
    if (size == 0.0) return ::testing::AssertionFailure() << name << " has no gradient";
    // Written so that NaN fails.
    if (!(std::sqrt(error) <= kParameterGradientTolerance * std::sqrt(size))) {
      return ::testing::AssertionFailure() << name << ": relative error " << std::sqrt(error / size)
                                           << " of a gradient of size " << std::sqrt(size);
    }
  }
  return ::testing::AssertionSuccess();
}

/// sum_i w_i y_i with fixed random weights w, for f64 y.
inline autograd::Variable random_projection(autograd::Tape& tape, const autograd::Variable& y,
                                            uint64_t seed = 99) {
  Tensor weights = Tensor::empty(tape.ctx(), y.shape(), DType::kF64);
  Tensor total = Tensor::zeros(tape.ctx(), {1}, DType::kF64);
  const Rng rng(seed);
  for (int64_t i = 0; i < weights.numel(); ++i) {
    weights.data<double>()[i] = rng.normal_at(static_cast<uint64_t>(i));
    total.data<double>()[0] += weights.data<double>()[i] * y.value().data<double>()[i];
  }
  return tape.record("projection", std::move(total), {y},
                     [weights](autograd::Backward& b) { b.give(0, weights.clone(b.ctx())); });
}

/// Replaces every parameter by normal values of this deviation (norms around one), so that no
/// gradient is tiny.
inline void randomise(nn::ParameterStore& store, double deviation, uint64_t seed = 5) {
  for (nn::Parameter& parameter : store.all()) {
    const Rng rng(seed++);
    const double mean = parameter.spec.init.kind == nn::Init::Kind::kOnes ? 1.0 : 0.0;
    visit_float(parameter.value.dtype(), [&]<typename T>() {
      for (int64_t i = 0; i < parameter.value.numel(); ++i) {
        parameter.value.data<T>()[i] =
            T(static_cast<acc_t<T>>(mean + deviation * rng.normal_at(static_cast<uint64_t>(i))));
      }
    });
  }
}

}  // namespace spillway::testing
