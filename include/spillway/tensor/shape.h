#pragma once
// Sizes of a contiguous array.

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>

namespace spillway {

/// Up to four dimensions, row-major. Sizes may be 0; no dimension at all is a scalar, one element.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  /// Throws Error for a negative size or more than kMaxRank dimensions.
  Shape(std::initializer_list<int64_t> dims);

  int rank() const { return rank_; }
  /// Size of dimension i; negative indices count from the back. Throws Error when there is none.
  int64_t operator[](int i) const;
  /// Product of all dimensions. Throws Error when it does not fit 64 bits.
  int64_t numel() const;
  /// Product of all dimensions but the last: the number of rows of the matrix view.
  int64_t rows() const;
  /// The same shape but for the size of dimension i, which is chosen as in [].
  Shape with_dim(int i, int64_t size) const;
  /// "[2, 3]".
  std::string str() const;

  friend bool operator==(const Shape&, const Shape&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Shape& shape);

 private:
  size_t index(int i) const;
  int64_t product(int num_dims) const;

  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

}  // namespace spillway
