// The keys are spread evenly, so where the prefix ends is known to a few rows before any is hashed.
// One pass over all rows counts those with a key below a window around that place and collects
// those in it; only they are put in order.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "keep.h"
#include "spillway/core/rng.h"
#include "zones.h"

namespace spillway::plan {
namespace {

constexpr uint64_t kLastKey = std::numeric_limits<uint64_t>::max();
constexpr int kRandomBins = 256;

struct Window {
  uint64_t first = 0, last = kLastKey;
};

struct Row {
  uint64_t key;
  int64_t cell;  // local expert * S + source: rows of equal keys in tail order
};

// Rows with a key below x of 2^64: R x, with a standard deviation of at most sqrt(R) / 2. To either
// side goes a margin given in sqrt(R).
Window guess(const Inbox& inbox, double margin_roots) {
  const auto num_rows = static_cast<double>(inbox.num_rows);
  const auto capacity = static_cast<double>(inbox.capacity);
  const auto padding = static_cast<double>(inbox.num_experts * (inbox.alignment - 1));
  const double margin = margin_roots * std::sqrt(num_rows) + 1;
  const double low = (capacity - padding - margin) / num_rows;
  const double high = (capacity + margin) / num_rows;
  Window window;
  if (low > 0) window.first = static_cast<uint64_t>(std::ldexp(low, 64));
  if (high < 1) window.last = static_cast<uint64_t>(std::ldexp(high, 64));
  return window;
}

class RandomOrder {
 public:
  RandomOrder(const Inbox& inbox, const DropRule& rule) : inbox_(inbox), rule_(rule) {}

  // False when the prefix ends outside the window.
  bool keep(const Window& window, KeptRows& rows) {
    rows = {.by_key = true};
    rows.kept.assign(static_cast<size_t>(inbox_.num_cells()), 0);
    rows.at_cut = rows.kept;
    Zones zones(inbox_.num_experts, inbox_.capacity, inbox_.alignment);
    const std::vector<int64_t> below = hash_all(window, rows);
    if (!zones.take_all(below.data())) return false;
    std::vector<Row> last_bin = take_bins(window, zones, rows);
    std::sort(last_bin.begin(), last_bin.end(), [](const Row& a, const Row& b) {
      return a.key != b.key ? a.key < b.key : a.cell < b.cell;
    });
    for (const Row& row : last_bin) {
      if (row.key != rows.cut) std::fill(rows.at_cut.begin(), rows.at_cut.end(), 0);
      rows.cut = row.key;
      if (zones.take(row.cell / inbox_.num_sources, 1) == 0) return true;
      ++rows.kept[index(row)];
      ++rows.at_cut[index(row)];
    }
    return false;
  }

 private:
  size_t index(const Row& row) const {
    const int64_t local = row.cell / inbox_.num_sources, source = row.cell % inbox_.num_sources;
    return static_cast<size_t>(source * inbox_.num_experts + local);
  }

  // Counts the rows below the window into `rows`, and [L] by expert; collects those in it.
  std::vector<int64_t> hash_all(const Window& window, KeptRows& rows) {
    std::vector<int64_t> below(static_cast<size_t>(inbox_.num_experts), 0);
    near_.clear();
    for (int64_t local = 0; local < inbox_.num_experts; ++local) {
      const int64_t expert = inbox_.rank * inbox_.num_experts + local;
      for (int64_t source = 0; source < inbox_.num_sources; ++source) {
        const uint64_t state = random_cell_state(rule_, expert, source);
        const auto count = static_cast<uint64_t>(inbox_.at(source, local));
        int64_t kept = 0;
        for (uint64_t ordinal = 0; ordinal < count; ++ordinal) {
          const uint64_t key = hash_chain(state, ordinal);
          kept += key < window.first ? 1 : 0;
          if (key - window.first <= window.last - window.first) [[unlikely]] {
            near_.push_back({key, local * inbox_.num_sources + source});
          }
        }
        rows.kept[static_cast<size_t>(source * inbox_.num_experts + local)] = kept;
        below[static_cast<size_t>(local)] += kept;
      }
    }
    return below;
  }

  // Takes the collected rows bin by bin of their keys while whole bins fit; returns the rows of the
  // first that does not.
  std::vector<Row> take_bins(const Window& window, Zones& zones, KeptRows& rows) const {
    int shift = 0;
    while ((window.last - window.first) >> shift >= kRandomBins) ++shift;
    const auto experts = static_cast<size_t>(inbox_.num_experts);
    std::vector<int64_t> bins(kRandomBins * experts, 0);  // [256, L]
    for (const Row& row : near_) {
      const auto local = static_cast<size_t>(row.cell / inbox_.num_sources);
      ++bins[((row.key - window.first) >> shift) * experts + local];
    }
    uint64_t bin = 0;
    while (bin < kRandomBins && zones.take_all(bins.data() + bin * experts)) ++bin;
    std::vector<Row> last_bin;
    for (const Row& row : near_) {
      const uint64_t its_bin = (row.key - window.first) >> shift;
      if (its_bin < bin) ++rows.kept[index(row)];
      if (its_bin == bin) last_bin.push_back(row);
    }
    return last_bin;
  }

  const Inbox& inbox_;
  const DropRule& rule_;
  std::vector<Row> near_;  // rows in the window
};

}  // namespace

KeptRows keep_random(const Inbox& inbox, const DropRule& rule) {
  RandomOrder order(inbox, rule);
  KeptRows rows;
  // Three standard deviations miss once in 400 times; in the end the window is the whole range.
  constexpr double kMargin = 1.5, kWiden = 4;
  double margin = kMargin;
  while (!order.keep(guess(inbox, margin), rows)) margin *= kWiden;
  return rows;
}

}  // namespace spillway::plan
