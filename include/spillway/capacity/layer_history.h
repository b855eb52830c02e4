#pragma once
// The demands of one layer over the last steps, bounded in memory.

#include <cstdint>
#include <deque>
#include <vector>

namespace spillway::capacity {

/// One number a step: the maximum of `total_recv_tokens` over all ranks of the world and all
/// micro-batches of the step, in slots. Keeps the last `limit` steps.
class LayerHistory {
 public:
  explicit LayerHistory(int64_t limit) : limit_(limit) {}

  void push(int64_t demand);
  /// Steps kept, at most the limit.
  int64_t size() const { return static_cast<int64_t>(demands_.size()); }
  bool empty() const { return demands_.empty(); }
  /// The largest demand of the last `steps` steps (of all kept ones when fewer); 0 when empty.
  int64_t max_of_last(int64_t steps) const;
  /// Oldest first.
  std::vector<int64_t> demands() const { return {demands_.begin(), demands_.end()}; }

 private:
  int64_t limit_;
  std::deque<int64_t> demands_;
};

}  // namespace spillway::capacity
