#include "spillway/autograd/variable.h"

#include "spillway/kernels/elementwise.h"

namespace spillway::autograd {

Gradient::Gradient(std::string name, Tensor buffer)
    : shape_(buffer.shape()),
      dtype_(buffer.dtype()),
      tensor_(std::move(buffer)),
      is_leaf_(true),
      name_(std::move(name)) {}

void Gradient::add(Context& ctx, Tensor gradient) {
  SPILLWAY_CHECK(gradient.shape() == shape_, "gradient ", gradient.shape(), " for a variable ",
                 name_, " of ", shape_);
  if (is_leaf_) {
    kernels::add_into(ctx, gradient, tensor_);
  } else if (!tensor_.defined()) {
    tensor_ = std::move(gradient);
  } else if (tensor_.unique() && accumulator_dtype(tensor_.dtype()) == tensor_.dtype()) {
    kernels::add_into(ctx, gradient, tensor_);
  } else {
    // Another slot shares this memory (an op gave one tensor to two inputs), or the sum of two
    // bf16 tensors is due: into memory of its own.
    Tensor sum = Tensor::empty(ctx, shape_, tensor_.dtype());
    kernels::add(ctx, tensor_, gradient, sum);
    tensor_ = std::move(sum);
  }
}

Tensor& Gradient::accumulator(Context& ctx) {
  if (!tensor_.defined()) tensor_ = Tensor::zeros(ctx, shape_, accumulator_dtype(dtype_));
  SPILLWAY_CHECK(is_leaf_ || (tensor_.unique() && tensor_.dtype() == accumulator_dtype(dtype_)),
                 "kernels add into leaves or into gradients that nobody shares");
  return tensor_;
}

Tensor Gradient::take() {
  SPILLWAY_CHECK(!is_leaf_, "the gradient of leaf ", name_, " is not taken");
  return std::move(tensor_);
}

Variable Variable::leaf(std::string name, Tensor value, Tensor gradient) {
  SPILLWAY_CHECK(
      value.shape() == gradient.shape() && gradient.dtype() == accumulator_dtype(value.dtype()),
      "leaf ", name, " of ", value.shape(), " with a gradient buffer of ", gradient.shape(), " ",
      dtype_name(gradient.dtype()));
  Variable variable{std::move(value)};
  variable.gradient_ = std::make_shared<Gradient>(std::move(name), std::move(gradient));
  return variable;
}

const Tensor& Variable::value() const {
  SPILLWAY_CHECK(has_value(), "the value of a variable of ", shape_, " that has none");
  return value_;
}

}  // namespace spillway::autograd
