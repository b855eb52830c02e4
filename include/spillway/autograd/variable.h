#pragma once
// A tensor on the tape: its value and the place where its gradient gathers.

#include <memory>
#include <string>

#include "spillway/tensor/tensor.h"

namespace spillway::autograd {

/// Gathers the gradient of one variable. A leaf owns a persistent buffer in the accumulator dtype
/// that is only ever added to; anything else holds what backward gave so far, or nothing.
class Gradient {
 public:
  Gradient(Shape shape, DType dtype) : shape_(shape), dtype_(dtype) {}
  Gradient(std::string name, Tensor buffer);

  bool is_leaf() const { return is_leaf_; }
  const std::string& name() const { return name_; }
  const Tensor& tensor() const { return tensor_; }
  /// Adds `gradient`, keeping it when it is the first. Never writes to memory that another tensor
  /// shares.
  void add(Context& ctx, Tensor gradient);
  /// The buffer that kernels add into; zeroed first when there was none.
  Tensor& accumulator(Context& ctx);
  /// Hands the gathered gradient over and forgets it (not for leaves).
  Tensor take();

 private:
  friend class Tape;
  Shape shape_;
  DType dtype_;
  Tensor tensor_;
  bool is_leaf_ = false;
  std::string name_;
  int64_t pending_uses_ = 0;  // recorded and not yet walked
};

/// Cheap to copy; copies are the same variable. Without a gradient it is a constant.
class Variable {
 public:
  Variable() = default;
  /// A constant.
  explicit Variable(Tensor value)
      : value_(std::move(value)), shape_(value_.shape()), dtype_(value_.dtype()) {}
  /// A leaf (a parameter). `gradient`: same shape, accumulator dtype, added to by backward.
  static Variable leaf(std::string name, Tensor value, Tensor gradient);

  bool defined() const { return value_.defined() || gradient_ != nullptr; }
  bool requires_grad() const { return gradient_ != nullptr; }
  /// False for an output that nobody reads when a region is computed again (see Tape::region).
  bool has_value() const { return value_.defined(); }
  /// Throws Error when there is none.
  const Tensor& value() const;
  const Shape& shape() const { return shape_; }
  int64_t dim(int i) const { return shape_[i]; }
  DType dtype() const { return dtype_; }
  /// The gradient gathered so far; undefined when there is none.
  Tensor grad() const { return gradient_ ? gradient_->tensor() : Tensor(); }

 private:
  friend class Tape;
  friend class Backward;
  Tensor value_;
  Shape shape_;
  DType dtype_ = DType::kF32;
  std::shared_ptr<Gradient> gradient_;
};

}  // namespace spillway::autograd
