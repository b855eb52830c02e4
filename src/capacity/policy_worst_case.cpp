// "worst_case": no routing can overflow; memory is what it costs.

#include "policies.h"

namespace spillway::capacity {
namespace {

class WorstCase final : public Policy {
 public:
  Wanted decide(const LayerHistory&, const LayerFacts& facts) override {
    return {facts.worst_case_slots, "worst_case"};
  }
};

}  // namespace

std::unique_ptr<Policy> make_worst_case(const CapacityConfig&) {
  return std::make_unique<WorstCase>();
}

}  // namespace spillway::capacity
