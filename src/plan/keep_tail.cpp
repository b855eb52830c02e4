#include <algorithm>

#include "keep.h"
#include "zones.h"

namespace spillway::plan {

// Whole experts while they fit, then the first rows of one, then nothing.
KeptRows keep_tail(const Inbox& inbox) {
  KeptRows rows;
  rows.kept.assign(static_cast<size_t>(inbox.num_cells()), 0);
  Zones zones(inbox.num_experts, inbox.capacity, inbox.alignment);
  for (int64_t local = 0; local < inbox.num_experts; ++local) {
    const int64_t routed = inbox.routed[static_cast<size_t>(local)];
    const int64_t taken = zones.take(local, routed);
    int64_t left = taken;
    for (int64_t source = 0; source < inbox.num_sources; ++source) {
      const int64_t kept = std::min(left, inbox.at(source, local));
      rows.kept[static_cast<size_t>(source * inbox.num_experts + local)] = kept;
      left -= kept;
    }
    if (taken < routed) break;
  }
  return rows;
}

}  // namespace spillway::plan
