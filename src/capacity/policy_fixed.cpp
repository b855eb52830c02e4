// "fixed": a number of slots from the config.

#include "policies.h"
#include "spillway/core/error.h"

namespace spillway::capacity {
namespace {

class Fixed final : public Policy {
 public:
  explicit Fixed(int64_t slots) : slots_(slots) {}

  Wanted decide(const LayerHistory&, const LayerFacts&) override {
    return {slots_, str("fixed at ", slots_)};
  }

 private:
  int64_t slots_;
};

}  // namespace

std::unique_ptr<Policy> make_fixed(const CapacityConfig& config) {
  return std::make_unique<Fixed>(config.fixed.slots);
}

}  // namespace spillway::capacity
