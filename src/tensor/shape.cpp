#include "spillway/tensor/shape.h"

#include <algorithm>
#include <numeric>
#include <ostream>

#include "spillway/core/math.h"

namespace spillway {

Shape::Shape(std::initializer_list<int64_t> dims) {
  SPILLWAY_CHECK(dims.size() <= kMaxRank, dims.size(), " dimensions in a shape, at most ", kMaxRank,
                 " are allowed");
  for (const int64_t dim : dims) {
    SPILLWAY_CHECK(dim >= 0, "a dimension of ", dim, " in a shape, at least 0 is needed");
    dims_[static_cast<size_t>(rank_++)] = dim;
  }
}

size_t Shape::index(int i) const {
  const int from_front = i < 0 ? i + rank_ : i;
  SPILLWAY_CHECK(from_front >= 0 && from_front < rank_, "dimension ", i, " of shape ", str());
  return static_cast<size_t>(from_front);
}

int64_t Shape::operator[](int i) const { return dims_[index(i)]; }

int64_t Shape::product(int num_dims) const {
  const auto end = dims_.begin() + num_dims;
  // A size of 0 decides, wherever it stands among sizes whose product would not fit.
  if (std::find(dims_.begin(), end, 0) != end) return 0;
  return std::accumulate(dims_.begin(), end, int64_t{1}, checked_mul);
}

int64_t Shape::numel() const { return product(rank_); }

int64_t Shape::rows() const { return product(std::max(rank_ - 1, 0)); }

Shape Shape::with_dim(int i, int64_t size) const {
  SPILLWAY_CHECK(size >= 0, "a dimension of ", size, " in a shape, at least 0 is needed");
  Shape shape = *this;
  shape.dims_[index(i)] = size;
  return shape;
}

std::string Shape::str() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(dims_[static_cast<size_t>(i)]);
  }
  return text + "]";
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.str(); }

}  // namespace spillway
