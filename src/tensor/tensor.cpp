#include "spillway/tensor/tensor.h"

#include <cstring>

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
  tensor.storage_ = std::make_shared<Storage>(ctx.allocator(), tensor.bytes(), purpose);
  return tensor;
}

Tensor Tensor::zeros(Context& ctx, Shape shape, DType dtype, Purpose purpose) {
  Tensor tensor = empty(ctx, shape, dtype, purpose);
  tensor.zero();
  return tensor;
}

Tensor Tensor::view(Shape shape) const {
  SPILLWAY_CHECK(shape.numel() == numel_, "view of ", shape_, " as ", shape);
  Tensor result = *this;
  result.shape_ = shape;
  return result;
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  SPILLWAY_CHECK(defined() && shape_.rank() >= 1 && 0 <= begin && begin <= end && end <= shape_[0],
                 "rows [", begin, ", ", end, ") of ", shape_);
  const int64_t row = shape_[0] == 0 ? 0 : numel_ / shape_[0];
  Shape shape;
  switch (shape_.rank()) {
    case 1:
      shape = {end - begin};
      break;
    case 2:
      shape = {end - begin, shape_[1]};
      break;
    case 3:
      shape = {end - begin, shape_[1], shape_[2]};
      break;
    default:
      shape = {end - begin, shape_[1], shape_[2], shape_[3]};
  }
  return slice(begin * row, shape);
}

Tensor Tensor::slice(int64_t begin, Shape shape) const {
  const int64_t count = shape.numel();
  SPILLWAY_CHECK(defined() && begin >= 0 && begin + count <= numel_, "slice of ", shape, " at ",
                 begin, " of ", shape_);
  Tensor result = *this;
  result.offset_bytes_ += begin * dtype_bytes(dtype_);
  result.shape_ = shape;
  result.numel_ = count;
  return result;
}

Tensor Tensor::clone(Context& ctx, Purpose purpose) const {
  Tensor result = empty(ctx, shape_, dtype_, purpose);
  copy(*this, result);
  return result;
}

void Tensor::zero() {
  if (numel_ > 0) std::memset(raw(), 0, static_cast<size_t>(bytes()));
}

Purpose Tensor::purpose() const {
  SPILLWAY_CHECK(defined(), "purpose of an undefined tensor");
  return storage_->purpose();
}

std::byte* Tensor::raw() const {
  SPILLWAY_CHECK(defined(), "data of an undefined tensor");
  return numel_ == 0 ? nullptr : storage_->data() + offset_bytes_;
}

void Tensor::check_dtype(DType wanted) const {
  SPILLWAY_CHECK(dtype_ == wanted, "tensor of ", dtype_name(dtype_), " read as ",
                 dtype_name(wanted));
}

void copy(const Tensor& from, Tensor& to) {
  SPILLWAY_CHECK(from.shape() == to.shape() && from.dtype() == to.dtype(), "copy of ", from.shape(),
                 " ", dtype_name(from.dtype()), " to ", to.shape(), " ", dtype_name(to.dtype()));
  if (from.numel() > 0) {
    std::memcpy(to.raw_data(), from.raw_data(), static_cast<size_t>(from.bytes()));
  }
}

}  // namespace spillway
