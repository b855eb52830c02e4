#include "spillway/tensor/shape.h"

#include <ostream>

#include "spillway/core/math.h"

namespace spillway {

Shape::Shape(std::initializer_list<int64_t> dims) {
  SPILLWAY_CHECK(dims.size() <= kMaxRank, "a shape has at most ", kMaxRank, " dimensions");
  for (const int64_t dim : dims) {
    SPILLWAY_CHECK(dim >= 0, "a dimension of ", dim, " in a shape");
    dims_[static_cast<size_t>(rank_++)] = dim;
  }
}

int64_t Shape::operator[](int i) const {
  const int index = i < 0 ? i + rank_ : i;
  SPILLWAY_CHECK(index >= 0 && index < rank_, "dimension ", i, " of shape ", str());
  return dims_[static_cast<size_t>(index)];
}

int64_t Shape::numel() const {
  int64_t product = 1;
  for (int i = 0; i < rank_; ++i) product = checked_mul(product, dims_[static_cast<size_t>(i)]);
  return product;
}

int64_t Shape::rows() const {
  int64_t product = 1;
  for (int i = 0; i + 1 < rank_; ++i) product = checked_mul(product, dims_[static_cast<size_t>(i)]);
  return product;
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
