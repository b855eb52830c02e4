// Row o of the n_s rows of source s, in tail order, has the key (2 o + 1) / (2 n_s); ties by
// (s + step) mod S. What is kept is therefore a first part of every source's rows, and the prefix
// of all keys up to that of row j of the largest source follows from j by one division a source.
// Its slots grow with j: the longest one that fits is found by bisection. Between two neighbouring
// keys of the largest source any other has at most one; these few rows are taken one by one.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "keep.h"
#include "zones.h"

namespace spillway::plan {
namespace {

using Wide = unsigned __int128;

class FairOrder {
 public:
  FairOrder(const Inbox& inbox, int64_t step)
      : inbox_(inbox),
        step_(step),
        num_rows_(size(inbox.num_sources)),
        zone_ends_(size(num_cells())) {
    int64_t* ends = zone_ends_.data();
    for (int64_t source = 0; source < inbox.num_sources; ++source) {
      int64_t end = 0;
      for (int64_t local = 0; local < inbox.num_experts; ++local) {
        *ends++ = end += inbox.at(source, local);
      }
      num_rows_[size(source)] = end;
    }
    largest_ = std::max_element(num_rows_.begin(), num_rows_.end()) - num_rows_.begin();
    most_ = num_rows_[size(largest_)];
    zone_rows_.resize(size(inbox.num_experts));
  }

  // [S]: rows of each source in the longest prefix that fits and ends at a key of the largest.
  std::vector<int64_t> bisect() {
    std::vector<int64_t> rows(num_rows_.size());
    auto [fits, too_long] = bracket();
    while (too_long - fits > 1) {
      const int64_t middle = fits + (too_long - fits) / 2;
      fill_prefix(middle, rows);
      (slots_of(rows) <= inbox_.capacity ? fits : too_long) = middle;
    }
    fill_prefix(fits, rows);
    return rows;
  }

  // Adds the rows that follow the prefix while they fit.
  void extend(std::vector<int64_t>& rows) {
    std::vector<int64_t> next(rows.size());
    fill_prefix(rows[size(largest_)], next);
    std::vector<int64_t> sources;
    for (int64_t source = 0; source < inbox_.num_sources; ++source) {
      if (next[size(source)] > rows[size(source)]) sources.push_back(source);
    }
    std::sort(sources.begin(), sources.end(), [&](int64_t a, int64_t b) {
      const Wide key_a = static_cast<Wide>(2 * rows[size(a)] + 1) * size(num_rows_[size(b)]);
      const Wide key_b = static_cast<Wide>(2 * rows[size(b)] + 1) * size(num_rows_[size(a)]);
      return key_a != key_b ? key_a < key_b : turn(a) < turn(b);
    });
    slots_of(rows);  // zone_rows_ of the prefix
    Zones zones(inbox_.num_experts, inbox_.capacity, inbox_.alignment);
    zones.take_all(zone_rows_.data());
    for (const int64_t source : sources) {
      const int64_t* ends = zone_ends_.data() + source * inbox_.num_experts;
      const int64_t local =
          std::upper_bound(ends, ends + inbox_.num_experts, rows[size(source)]) - ends;
      if (zones.take(local, 1) == 0) return;
      ++rows[size(source)];
    }
  }

  // [S, L] of a first part of each source's rows.
  std::vector<int64_t> cells(const std::vector<int64_t>& rows) const {
    std::vector<int64_t> kept(zone_ends_.size());
    size_t cell = 0;
    for (const int64_t num_rows : rows) {
      int64_t begin = 0;
      for (int64_t local = 0; local < inbox_.num_experts; ++local, ++cell) {
        const int64_t end = std::min(num_rows, zone_ends_[cell]);
        kept[cell] = end - begin;
        begin = end;
      }
    }
    return kept;
  }

 private:
  static size_t size(int64_t value) { return static_cast<size_t>(value); }
  int64_t num_cells() const { return inbox_.num_cells(); }
  // The place of a source among equal keys.
  int64_t turn(int64_t source) const {
    const int64_t turned = (source + step_ % inbox_.num_sources) % inbox_.num_sources;
    return turned < 0 ? turned + inbox_.num_sources : turned;
  }

  // Indices of rows of the largest source, -1 for none: a prefix that fits and one that does not.
  // A prefix up to row j has R (2 j + 1) / (2 n) rows, give or take half a row a source, and at
  // most A - 1 slots an expert more, so few indices need a look.
  std::pair<int64_t, int64_t> bracket() const {
    const int64_t padding = inbox_.num_experts * (inbox_.alignment - 1);
    const int64_t low = 2 * (inbox_.capacity - padding) - inbox_.num_sources;
    const int64_t high = 2 * inbox_.capacity + inbox_.num_sources;
    return {(odd_numbers(low) + 1) / 2 - 1, std::min(most_, (odd_numbers(high) + 1) / 2)};
  }
  // floor(n * half_rows / R), the most that 2 j + 1 may be; 0 when half_rows is negative.
  int64_t odd_numbers(int64_t half_rows) const {
    const Wide product = static_cast<Wide>(std::max<int64_t>(half_rows, 0)) * size(most_);
    return static_cast<int64_t>(product / size(inbox_.num_rows));
  }

  // rows [S] of the prefix of all rows with keys up to that of row `index` of the largest source:
  // 2 o + 1 <= (2 index + 1) n_s / n.
  void fill_prefix(int64_t index, std::vector<int64_t>& rows) const {
    if (index < 0 || index >= most_) {
      rows = index < 0 ? std::vector<int64_t>(rows.size(), 0) : num_rows_;
    } else if (most_ < (int64_t{1} << 31)) {
      divide<uint64_t>(index, rows);
    } else {
      divide<Wide>(index, rows);
    }
  }
  template <typename Word>
  void divide(int64_t index, std::vector<int64_t>& rows) const {
    const auto most = static_cast<Word>(most_);
    for (size_t source = 0; source < rows.size(); ++source) {
      const Word product = static_cast<Word>(2 * index + 1) * static_cast<Word>(num_rows_[source]);
      rows[source] = static_cast<int64_t>((product + most) / (2 * most));
    }
  }

  // Slots of a first part of each source's rows; leaves zone_rows_ [L] filled.
  int64_t slots_of(const std::vector<int64_t>& rows) {
    std::fill(zone_rows_.begin(), zone_rows_.end(), 0);
    const int64_t* ends = zone_ends_.data();
    for (const int64_t num_rows : rows) {
      for (size_t local = 0; local < zone_rows_.size(); ++local) {
        zone_rows_[local] += std::min(num_rows, ends[local]);
      }
      ends += zone_rows_.size();
    }
    int64_t slots = 0, begin = 0;
    for (int64_t& zone : zone_rows_) {  // rows of this zone and those before it
      const int64_t end = zone;
      zone = end - begin;
      begin = end;
      slots += padded(zone, inbox_.alignment);
    }
    return slots;
  }

  const Inbox& inbox_;
  int64_t step_;
  std::vector<int64_t> num_rows_;   // [S]: n_s
  std::vector<int64_t> zone_ends_;  // [S, L]: rows of a source for the experts up to this one
  std::vector<int64_t> zone_rows_;  // [L]
  int64_t largest_ = 0;             // the source with most rows
  int64_t most_ = 0;                // n: its rows
};

}  // namespace

KeptRows keep_fair(const Inbox& inbox, int64_t step) {
  FairOrder order(inbox, step);
  std::vector<int64_t> rows = order.bisect();
  order.extend(rows);
  return {.kept = order.cells(rows)};
}

}  // namespace spillway::plan
