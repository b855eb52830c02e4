#include "spillway/plan/score_order.h"

#include <vector>

#include "keep.h"
#include "spillway/core/error.h"
#include "zones.h"

namespace spillway::plan {
namespace {

constexpr auto kBins = static_cast<size_t>(kScoreBins);

size_t index(const Inbox& inbox, int64_t source, int64_t local) {
  return static_cast<size_t>(source * inbox.num_experts + local);
}

Inbox overflowing(const CountMatrix& matrix, int64_t rank, int64_t capacity, int64_t alignment) {
  Inbox inbox(matrix, rank, capacity, alignment);
  SPILLWAY_CHECK(inbox.overflow(), "rank ", rank, " has a demand of ", inbox.demand,
                 " slots; allowed: above the capacity ", capacity,
                 ", scores are for a rank that overflows");
  return inbox;
}

void check_size(const Inbox& inbox, const char* name, std::span<const int32_t> bins) {
  const size_t allowed = static_cast<size_t>(inbox.num_cells()) * kBins;
  SPILLWAY_CHECK(bins.size() == allowed, name, " has ", bins.size(),
                 " entries; allowed: ep * experts per rank * 256 = ", allowed);
}

// Adds the bins of one cell to those of its expert [256]. They must be `total` rows.
void add_cell(const int32_t* bins, int64_t* expert_bins, int64_t total, const char* name,
              int64_t source, int64_t local) {
  int64_t rows = 0;
  int32_t all_bits = 0;
  for (size_t bin = 0; bin < kBins; ++bin) {
    rows += bins[bin];
    all_bits |= bins[bin];
    expert_bins[bin] += bins[bin];
  }
  SPILLWAY_CHECK(rows == total && all_bits >= 0, name, " of source ", source, ", local expert ",
                 local, " has ", rows, " rows, or a negative bin; allowed: ", total, " rows");
}

// Adds whole bins while all their rows fit; returns the first that does not. bins [L, 256].
int64_t take_bins(const Inbox& inbox, const std::vector<int64_t>& bins, Zones& zones) {
  std::vector<int64_t> rows(inbox.routed.size());
  for (size_t bin = 0; bin < kBins; ++bin) {
    for (size_t local = 0; local < rows.size(); ++local) rows[local] = bins[local * kBins + bin];
    if (!zones.take_all(rows.data())) return static_cast<int64_t>(bin);
  }
  return kScoreBins;
}

// kept [S, L]: adds the rows in the bins below `end`.
void add_below(std::span<const int32_t> bins, int64_t end, std::vector<int64_t>& kept) {
  const int32_t* cell_bins = bins.data();
  for (int64_t& rows : kept) {
    for (int64_t bin = 0; bin < end; ++bin) rows += cell_bins[bin];
    cell_bins += kBins;
  }
}

}  // namespace

int64_t score_boundary(const CountMatrix& matrix, int64_t rank, int64_t capacity, int64_t alignment,
                       std::span<const int32_t> coarse) {
  const Inbox inbox = overflowing(matrix, rank, capacity, alignment);
  check_size(inbox, "coarse", coarse);
  std::vector<int64_t> bins(inbox.routed.size() * kBins, 0);
  const int32_t* cell_bins = coarse.data();
  for (int64_t source = 0; source < inbox.num_sources; ++source) {
    for (int64_t local = 0; local < inbox.num_experts; ++local, cell_bins += kBins) {
      add_cell(cell_bins, bins.data() + local * kScoreBins, inbox.at(source, local), "coarse",
               source, local);
    }
  }
  Zones zones(inbox.num_experts, capacity, alignment);
  return take_bins(inbox, bins, zones);
}

KeptRows keep_by_score(const CountMatrix& matrix, int64_t rank, int64_t capacity, int64_t alignment,
                       std::span<const int32_t> coarse, int64_t boundary,
                       std::span<const int32_t> fine) {
  const Inbox inbox = overflowing(matrix, rank, capacity, alignment);
  check_size(inbox, "coarse", coarse);
  check_size(inbox, "fine", fine);
  SPILLWAY_CHECK(boundary >= 0 && boundary < kScoreBins, "boundary is ", boundary,
                 "; allowed: 0 to 255");
  KeptRows rows{.kept = std::vector<int64_t>(static_cast<size_t>(inbox.num_cells()), 0),
                .by_key = true};
  add_below(coarse, boundary, rows.kept);
  rows.at_cut.assign(rows.kept.size(), 0);

  std::vector<int64_t> higher(inbox.routed.size(), 0);
  std::vector<int64_t> bins(inbox.routed.size() * kBins, 0);
  for (int64_t source = 0; source < inbox.num_sources; ++source) {
    for (int64_t local = 0; local < inbox.num_experts; ++local) {
      const size_t cell = index(inbox, source, local);
      higher[static_cast<size_t>(local)] += rows.kept[cell];
      add_cell(fine.data() + cell * kBins, bins.data() + local * kScoreBins,
               coarse[cell * kBins + static_cast<size_t>(boundary)], "fine", source, local);
    }
  }
  Zones zones(inbox.num_experts, capacity, alignment);
  const bool fits = zones.take_all(higher.data());
  const int64_t low_byte = fits ? take_bins(inbox, bins, zones) : kScoreBins;
  SPILLWAY_CHECK(low_byte < kScoreBins, "boundary is ", boundary,
                 "; allowed: the bin in which the longest prefix of rank ", rank, " ends");
  add_below(fine, low_byte, rows.kept);
  rows.cut = static_cast<uint64_t>(boundary * kScoreBins + low_byte);

  // The rows with the key at which the prefix ends, in tail order.
  for (int64_t local = 0; local < inbox.num_experts; ++local) {
    for (int64_t source = 0; source < inbox.num_sources; ++source) {
      const size_t cell = index(inbox, source, local);
      const int64_t equal = fine[cell * kBins + static_cast<size_t>(low_byte)];
      const int64_t taken = zones.take(local, equal);
      rows.at_cut[cell] = taken;
      rows.kept[cell] += taken;
      if (taken < equal) return rows;
    }
  }
  return rows;
}

}  // namespace spillway::plan
