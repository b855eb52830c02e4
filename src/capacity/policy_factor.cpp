// "factor": a multiple of the balanced demand.

#include "policies.h"
#include "spillway/core/error.h"
#include "spillway/plan/scaling.h"

namespace spillway::capacity {
namespace {

class Factor final : public Policy {
 public:
  explicit Factor(double factor) : factor_(factor) {}

  Wanted decide(const LayerHistory&, const LayerFacts& facts) override {
    return {
        plan::scaled_slots(facts.balanced_slots, factor_, facts.alignment, facts.worst_case_slots),
        str(factor_, " x balanced ", facts.balanced_slots)};
  }

 private:
  double factor_;
};

}  // namespace

std::unique_ptr<Policy> make_factor(const CapacityConfig& config) {
  return std::make_unique<Factor>(config.factor.factor);
}

}  // namespace spillway::capacity
