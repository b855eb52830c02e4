#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace spillway {

/// Up to four dimensions, row-major. Sizes may be 0.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);

  int rank() const { return rank_; }
  /// Negative indices count from the back.
  int64_t operator[](int i) const;
  int64_t numel() const;
  /// Product of all dimensions but the last: the number of rows of the matrix view.
  int64_t rows() const;
  /// "[2, 3]".
  std::string str() const;

  friend bool operator==(const Shape&, const Shape&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Shape& shape);

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

}  // namespace spillway
