#pragma once
// A contiguous, row-major, reference-counted array. No maths lives here.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>

#include "spillway/runtime/context.h"
#include "spillway/tensor/dtype.h"
#include "spillway/tensor/shape.h"

namespace spillway {

/// A block of memory of an allocator, freed with the last tensor that refers to it.
class Storage {
 public:
  Storage(std::shared_ptr<Allocator> allocator, int64_t bytes, Purpose purpose);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Purpose purpose() const { return purpose_; }

 private:
  std::shared_ptr<Allocator> allocator_;
  std::byte* data_;
  int64_t bytes_;
  Purpose purpose_;
};

/// Copies share the storage. A default-constructed or moved-from tensor is undefined (no storage):
/// it may be copied, assigned and asked whether it is defined; what needs elements throws Error.
class Tensor {
 public:
  Tensor() = default;

  /// Uninitialised, 64-byte aligned. Throws Error when memory runs out.
  static Tensor empty(Context& ctx, Shape shape, DType dtype,
                      Purpose purpose = Purpose::kActivations);
  static Tensor zeros(Context& ctx, Shape shape, DType dtype,
                      Purpose purpose = Purpose::kActivations);
  /// A new tensor with a copy of host values (tests, small inputs). Throws Error when there are
  /// more or fewer than the shape has elements.
  template <typename T>
  static Tensor from(Context& ctx, Shape shape, std::span<const T> values,
                     Purpose purpose = Purpose::kActivations);

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  int64_t dim(int i) const { return shape_[i]; }
  int64_t numel() const { return numel_; }
  int64_t bytes() const { return numel_ * dtype_bytes(dtype_); }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }

  /// Typed access; throws Error when T is not the dtype. Null for a tensor without elements. Parts
  /// made by `rows` and `slice` are aligned to their dtype only.
  template <typename T>
  T* data() {
    check_dtype(DTypeOf<T>::value);
    return reinterpret_cast<T*>(raw());
  }
  template <typename T>
  const T* data() const {
    check_dtype(DTypeOf<T>::value);
    return reinterpret_cast<const T*>(raw());
  }
  void* raw_data() { return raw(); }
  const void* raw_data() const { return raw(); }
  template <typename T>
  std::span<T> span() {
    return {data<T>(), static_cast<size_t>(numel_)};
  }
  template <typename T>
  std::span<const T> span() const {
    return {data<T>(), static_cast<size_t>(numel_)};
  }

  /// The same memory under another shape of as many elements; another number throws Error.
  Tensor view(Shape shape) const;
  /// Rows [begin, end) of the first dimension, sharing memory; throws Error beyond the tensor.
  Tensor rows(int64_t begin, int64_t end) const;
  /// Elements [begin, begin + shape.numel()), sharing memory; throws Error beyond the tensor.
  Tensor slice(int64_t begin, Shape shape) const;
  /// A copy in memory of its own.
  Tensor clone(Context& ctx, Purpose purpose = Purpose::kActivations) const;
  /// All bytes 0, which is 0 in every dtype.
  void zero();

  /// True when no other tensor shares the storage: it may be overwritten.
  bool unique() const { return storage_.use_count() == 1; }
  /// False for undefined tensors. Parts of one storage need not overlap.
  bool shares_storage(const Tensor& other) const { return defined() && storage_ == other.storage_; }
  Purpose purpose() const;

 private:
  std::byte* raw() const;
  void check_defined(const char* use) const;
  void check_dtype(DType wanted) const;

  std::shared_ptr<Storage> storage_;
  int64_t offset_bytes_ = 0;
  Shape shape_;
  int64_t numel_ = 0;
  DType dtype_ = DType::kF32;
  Device device_ = Device::kCpu;
};

/// Copies all bytes, also between parts of one storage that overlap. Throws Error when shapes or
/// dtypes differ or a tensor is undefined.
void copy(const Tensor& from, Tensor& to);

template <typename T>
Tensor Tensor::from(Context& ctx, Shape shape, std::span<const T> values, Purpose purpose) {
  SPILLWAY_CHECK(static_cast<int64_t>(values.size()) == shape.numel(), values.size(),
                 " values for shape ", shape);
  Tensor tensor = empty(ctx, shape, DTypeOf<T>::value, purpose);
  std::copy(values.begin(), values.end(), tensor.data<T>());
  return tensor;
}

}  // namespace spillway
