#pragma once
// The padded zones of a rank's receive buffer while rows are added to them, in any drop order.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace spillway::plan {

/// `rows` rounded up to the alignment, a power of two, without a division.
inline int64_t padded(int64_t rows, int64_t alignment) {
  return (rows + alignment - 1) & -alignment;
}

class Zones {
 public:
  /// `capacity` in slots, a multiple of the alignment.
  Zones(int64_t num_experts, int64_t capacity, int64_t alignment)
      : rows_(static_cast<size_t>(num_experts), 0), free_(capacity), alignment_(alignment) {}

  /// Rows that expert `local` can still take: what its last started block and the free slots hold.
  int64_t room(int64_t local) const { return gap(local) + free_; }

  /// Adds as many of `rows` rows to expert `local` as fit and says how many. Fewer than `rows`
  /// means that the longest prefix has ended.
  int64_t take(int64_t local, int64_t rows) {
    const int64_t taken = std::min(rows, room(local));
    free_ -= padded(std::max<int64_t>(taken - gap(local), 0), alignment_);
    rows_[static_cast<size_t>(local)] += taken;
    return taken;
  }

  /// Adds rows [L] to all experts if all of them fit, else changes nothing.
  template <typename Count>
  bool take_all(const Count* rows) {
    int64_t more = 0;
    for (size_t local = 0; local < rows_.size(); ++local) {
      const int64_t before = padded(rows_[local], alignment_);
      more += padded(rows_[local] + rows[local], alignment_) - before;
    }
    if (more > free_) return false;
    for (size_t local = 0; local < rows_.size(); ++local) rows_[local] += rows[local];
    free_ -= more;
    return true;
  }

  /// [L]: rows of each expert.
  const std::vector<int64_t>& rows() const { return rows_; }

 private:
  // Padding slots behind the rows of a zone.
  int64_t gap(int64_t local) const { return -rows_[static_cast<size_t>(local)] & (alignment_ - 1); }

  std::vector<int64_t> rows_;
  int64_t free_;
  int64_t alignment_;
};

}  // namespace spillway::plan
