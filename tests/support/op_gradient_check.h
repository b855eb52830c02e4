#pragma once
// The gradients that the tape gives for an op, against central differences in double.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "spillway/autograd/tape.h"
#include "support/gradient_check.h"
#include "support/kernel_test.h"

namespace spillway::testing {

/// Bound of |tape - difference| / max(|tape|, |difference|), L2 over one input. With the step below
/// the differences carry a truncation error near h^2 = 1e-10 of the third derivative and a rounding
/// error near 1e-16 / h = 1e-11 of the contracted output, which is at most some hundred times the
/// gradient here. A wrong term in a gradient is off by 1e-3 and more.
inline constexpr double kOpGradientTolerance = 1e-7;
inline constexpr double kOpGradientStep = 1e-5;

/// An f64 tensor that an op is differentiated by.
struct OpInput {
  std::string name;
  Tensor value;
  /// Rows (of dimension 0) that the op reads; empty: all. The others are not compared.
  std::vector<bool> rows = {};
  /// The output does not depend on it: the gradient must be exactly zero.
  bool zero = false;
};

/// The outputs of an op as a function of its inputs, in the order of the OpInputs.
using OpFunction = std::function<std::vector<autograd::Variable>(
    autograd::Tape&, const std::vector<autograd::Variable>&)>;

/// Rows of each output that are specified; empty: all.
using OutputRows = std::vector<std::vector<bool>>;

namespace detail {

inline bool row_used(const std::vector<bool>& rows, const Tensor& tensor, int64_t element) {
  if (rows.empty()) return true;
  return rows.at(static_cast<size_t>(element / (tensor.numel() / tensor.dim(0))));
}

/// sum over outputs and their used elements of weight * element: one number whose gradient holds
/// every output's. The weights are fixed random numbers.
inline autograd::Variable contract(autograd::Tape& tape,
                                   const std::vector<autograd::Variable>& outputs,
                                   const OutputRows& used) {
  std::vector<Tensor> weights;
  double total = 0.0;
  for (size_t k = 0; k < outputs.size(); ++k) {
    const Tensor& value = outputs[k].value();
    Tensor weight = random_tensor(tape.ctx(), value.shape(), DType::kF64, 1000 + k);
    for (int64_t i = 0; i < value.numel(); ++i) {
      double& w = weight.data<double>()[i];
      // Unspecified rows may hold NaN: no product with zero.
      if (!used.empty() && !row_used(used[k], value, i)) {
        w = 0.0;
      } else {
        total += w * value.data<double>()[i];
      }
    }
    weights.push_back(std::move(weight));
  }
  return tape.record("contract", tensor_of<double>(tape.ctx(), {1}, {total}), outputs,
                     [weights](autograd::Backward& b) {
                       for (size_t k = 0; k < weights.size(); ++k) {
                         b.give(static_cast<int>(k), weights[k].clone(b.ctx()));
                       }
                     });
}

/// Gradients of the contracted op by the tape; `only` >= 0: by that input, the others constant.
inline std::vector<Tensor> tape_gradients(Context& ctx, const OpFunction& op,
                                          const std::vector<OpInput>& inputs,
                                          const OutputRows& used, int only = -1) {
  autograd::Tape tape(ctx);
  std::vector<autograd::Variable> variables;
  std::vector<Tensor> gradients;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensor gradient = Tensor::zeros(ctx, inputs[i].value.shape(), DType::kF64);
    const bool constant = only >= 0 && only != static_cast<int>(i);
    variables.push_back(constant
                            ? autograd::Variable(inputs[i].value)
                            : autograd::Variable::leaf(inputs[i].name, inputs[i].value, gradient));
    gradients.push_back(std::move(gradient));
  }
  tape.backward(contract(tape, op(tape, variables), used));
  return gradients;
}

inline double contracted_value(Context& ctx, const OpFunction& op,
                               const std::vector<OpInput>& inputs, const OutputRows& used) {
  autograd::Tape tape(ctx, false);
  std::vector<autograd::Variable> constants;
  for (const OpInput& input : inputs) constants.emplace_back(input.value);
  return contract(tape, op(tape, constants), used).value().data<double>()[0];
}

/// One input: the tape's gradient against differences, over the rows that count.
inline ::testing::AssertionResult compare(Context& ctx, const OpFunction& op,
                                          const std::vector<OpInput>& inputs,
                                          const OutputRows& used, size_t which,
                                          const Tensor& gradient) {
  const OpInput& input = inputs[which];
  double error = 0.0, of_tape = 0.0, of_difference = 0.0;
  for (int64_t i = 0; i < input.value.numel(); ++i) {
    if (!row_used(input.rows, input.value, i)) continue;
    double& element = Tensor(input.value).data<double>()[i];
    const double difference = central_difference(
        element, kOpGradientStep, [&] { return contracted_value(ctx, op, inputs, used); });
    const double given = gradient.data<double>()[i];
    error += (given - difference) * (given - difference);
    of_tape += given * given;
    of_difference += difference * difference;
  }
  error = std::sqrt(error);
  const double size = std::sqrt(std::max(of_tape, of_difference));
  if (input.zero) {
    if (of_tape == 0.0 && of_difference == 0.0) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure()
           << input.name << ": the gradient should be zero, has size " << size;
  }
  if (size == 0.0 && input.value.numel() > 0) {
    return ::testing::AssertionFailure()
           << input.name << ": the gradient is zero everywhere and proves nothing";
  }
  // Written so that NaN fails.
  if (!(error <= kOpGradientTolerance * size)) {
    return ::testing::AssertionFailure()
           << input.name << " " << input.value.shape() << ": relative error " << error / size
           << " of a gradient of size " << size;
  }
  return ::testing::AssertionSuccess();
}

inline bool same_rows(const OpInput& input, const Tensor& a, const Tensor& b) {
  for (int64_t i = 0; i < a.numel(); ++i) {
    if (row_used(input.rows, a, i) && a.data<double>()[i] != b.data<double>()[i]) return false;
  }
  return true;
}

}  // namespace detail

/// Contracts the outputs of `op` with fixed random weights and compares the tape's gradient of
/// every input with central differences; then takes each input as the only one that wants a
/// gradient, which must give the same bits.
inline ::testing::AssertionResult op_gradients_match(Context& ctx, const OpFunction& op,
                                                     const std::vector<OpInput>& inputs,
                                                     const OutputRows& used = {}) {
  const std::vector<Tensor> gradients = detail::tape_gradients(ctx, op, inputs, used);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto result = detail::compare(ctx, op, inputs, used, i, gradients[i]);
    if (!result) return result;
    if (inputs.size() == 1) continue;
    const auto alone = detail::tape_gradients(ctx, op, inputs, used, static_cast<int>(i));
    if (!detail::same_rows(inputs[i], gradients[i], alone[i])) {
      return ::testing::AssertionFailure()
             << inputs[i].name << ": another gradient when the other inputs are constants";
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace spillway::testing
