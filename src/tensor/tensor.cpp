#include "spillway/tensor/tensor.h"

#include <cstring>

#include "spillway/core/math.h"

namespace spillway {

Storage::Storage(std::shared_ptr<Allocator> allocator, int64_t bytes, Purpose purpose)
    : allocator_(std::move(allocator)),
      data_(static_cast<std::byte*>(allocator_->allocate(bytes, purpose))),
      bytes_(bytes),
      purpose_(purpose) {}

Storage::~Storage() { allocator_->release(data_, bytes_, purpose_); }

Tensor Tensor::empty(Context& ctx, Shape shape, DType dtype, Purpose purpose) {
  Tensor tensor;
  tensor.shape_ = shape;
  tensor.numel_ = shape.numel();
  tensor.dtype_ = dtype;
  tensor.device_ = ctx.device();
  tensor.storage_ = std::make_shared<Storage>(
      ctx.allocator(), checked_mul(tensor.numel_, dtype_bytes(dtype)), purpose);
  return tensor;
}

Tensor Tensor::zeros(Context& ctx, Shape shape, DType dtype, Purpose purpose) {
  Tensor tensor = empty(ctx, shape, dtype, purpose);
  tensor.zero();
  return tensor;
}

Tensor Tensor::view(Shape shape) const {
  check_defined("view");
  SPILLWAY_CHECK(shape.numel() == numel_, "view of ", shape_, " as ", shape);
  Tensor result = *this;
  result.shape_ = shape;
  return result;
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  check_defined("rows");
  SPILLWAY_CHECK(shape_.rank() >= 1 && 0 <= begin && begin <= end && end <= shape_[0], "rows [",
                 begin, ", ", end, ") of ", shape_);
  const int64_t row = shape_[0] == 0 ? 0 : numel_ / shape_[0];
  return slice(begin * row, shape_.with_dim(0, end - begin));
}

Tensor Tensor::slice(int64_t begin, Shape shape) const {
  check_defined("slice");
  const int64_t count = shape.numel();
  SPILLWAY_CHECK(begin >= 0 && begin <= numel_ - count, "slice of ", shape, " at ", begin, " of ",
                 shape_);
  Tensor result = *this;
  result.offset_bytes_ += begin * dtype_bytes(dtype_);
  result.shape_ = shape;
  result.numel_ = count;
  return result;
}

Tensor Tensor::clone(Context& ctx, Purpose purpose) const {
  check_defined("clone");
  Tensor result = empty(ctx, shape_, dtype_, purpose);
  copy(*this, result);
  return result;
}

void Tensor::zero() {
  check_defined("zero");
  if (numel_ > 0) std::memset(raw(), 0, static_cast<size_t>(bytes()));
}

Purpose Tensor::purpose() const {
  check_defined("purpose");
  return storage_->purpose();
}

std::byte* Tensor::raw() const {
  check_defined("data");
  return numel_ == 0 ? nullptr : storage_->data() + offset_bytes_;
}

void Tensor::check_defined(const char* use) const {
  SPILLWAY_CHECK(defined(), use, " of an undefined tensor");
}

void Tensor::check_dtype(DType wanted) const {
  check_defined("data");
  SPILLWAY_CHECK(dtype_ == wanted, "tensor of ", dtype_name(dtype_), " read as ",
                 dtype_name(wanted));
}

void copy(const Tensor& from, Tensor& to) {
  SPILLWAY_CHECK(from.shape() == to.shape() && from.dtype() == to.dtype(), "copy of ", from.shape(),
                 " ", dtype_name(from.dtype()), " to ", to.shape(), " ", dtype_name(to.dtype()));
  void* target = to.raw_data();
  const void* source = from.raw_data();
  if (from.numel() > 0) std::memmove(target, source, static_cast<size_t>(from.bytes()));
}

}  // namespace spillway
