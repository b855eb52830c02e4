#include "spillway/capacity/controller.h"

#include <algorithm>
#include <utility>

#include "spillway/core/error.h"
#include "spillway/core/math.h"
#include "spillway/plan/scaling.h"
#include "spillway/plan/sizing.h"

namespace spillway::capacity {
namespace {

void check_facts(const LayerFacts& facts, size_t layer) {
  SPILLWAY_CHECK(is_power_of_two(facts.alignment), "layer ", layer, ": alignment is ",
                 facts.alignment, "; allowed: a power of two");
  SPILLWAY_CHECK(
      facts.worst_case_slots >= facts.alignment && facts.worst_case_slots % facts.alignment == 0,
      "layer ", layer, ": worst_case_slots is ", facts.worst_case_slots,
      "; allowed: a positive multiple of the alignment ", facts.alignment);
  SPILLWAY_CHECK(facts.balanced_slots >= 0 && facts.balanced_slots <= facts.worst_case_slots,
                 "layer ", layer, ": balanced_slots is ", facts.balanced_slots,
                 "; allowed: 0 to the worst case, ", facts.worst_case_slots);
}

}  // namespace

bool pinned_to_worst_case(const CapacityConfig& config, int64_t ep) {
  // "skip" goes forward as "drop" does.
  const bool drops =
      config.on_overflow == OnOverflow::kDrop || config.on_overflow == OnOverflow::kSkip;
  return ep == 1 && (policy_named(config.policy).adaptive || !drops);
}

Controller::Controller(const CapacityConfig& config, std::vector<LayerFacts> layers, int64_t ep)
    : config_(config),
      entry_(&policy_named(config.policy)),
      pinned_(pinned_to_worst_case(config, ep)) {
  SPILLWAY_CHECK(ep >= 1, "ep is ", ep, "; allowed: >= 1");
  for (LayerFacts& facts : layers) {
    check_facts(facts, layers_.size());
    std::unique_ptr<Policy> policy = entry_->make(config_);
    facts.capacity = start_capacity(*policy, facts);
    LayerHistory history(policy->history_steps());
    layers_.push_back({facts, std::move(policy), std::move(history), facts.capacity});
  }
}

int64_t Controller::start_capacity(Policy& policy, const LayerFacts& facts) const {
  if (pinned_) return facts.worst_case_slots;
  if (!entry_->adaptive) return clamp(policy.decide(LayerHistory(0), facts).slots, facts);
  if (config_.initial.worst_case) return facts.worst_case_slots;
  return clamp(plan::scaled_slots(facts.balanced_slots, config_.initial.factor, facts.alignment,
                                  facts.worst_case_slots),
               facts);
}

int64_t Controller::clamp(int64_t slots, const LayerFacts& facts) const {
  return plan::clamp_capacity(slots, config_.min_slots, facts.worst_case_slots, facts.alignment);
}

std::vector<int64_t> Controller::capacities() const {
  std::vector<int64_t> capacities;
  for (const Layer& layer : layers_) capacities.push_back(layer.facts.capacity);
  return capacities;
}

void Controller::observe(const StepDemand& step) {
  SPILLWAY_CHECK(step.demand.size() == layers_.size(), "the step has demands of ",
                 step.demand.size(), " layers; allowed: ", layers_.size());
  SPILLWAY_CHECK(step.capacity_end.empty() || step.capacity_end.size() == layers_.size(),
                 "the step has capacities of ", step.capacity_end.size(), " layers; allowed: 0 or ",
                 layers_.size());
  for (size_t i = 0; i < step.capacity_end.size(); ++i) {
    const LayerFacts& facts = layers_[i].facts;
    SPILLWAY_CHECK(step.capacity_end[i] >= facts.capacity &&
                       step.capacity_end[i] <= facts.worst_case_slots &&
                       step.capacity_end[i] % facts.alignment == 0,
                   "layer ", i, ": the step ended with ", step.capacity_end[i],
                   " slots; allowed: multiples of ", facts.alignment, " from ", facts.capacity,
                   " to ", facts.worst_case_slots);
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].history.push(step.demand[i]);
    if (!step.capacity_end.empty()) layers_[i].facts.capacity = step.capacity_end[i];
  }
  ++observed_steps_;
}

// One wish a layer, clamped; under scope "model" the largest of them for every layer.
std::vector<Wanted> Controller::wanted() {
  std::vector<Wanted> wanted;
  for (Layer& layer : layers_) {
    Wanted wish = entry_->adaptive ? layer.policy->decide(layer.history, layer.facts)
                                   : Wanted{layer.facts.capacity, "grown"};
    wish.slots = clamp(wish.slots, layer.facts);
    wanted.push_back(std::move(wish));
  }
  if (config_.scope == Scope::kLayer) return wanted;
  const auto largest =
      std::max_element(wanted.begin(), wanted.end(),
                       [](const Wanted& a, const Wanted& b) { return a.slots < b.slots; });
  const Wanted common{largest->slots,
                      str("model scope, layer ", largest - wanted.begin(), ": ", largest->reason)};
  for (size_t i = 0; i < wanted.size(); ++i) {
    wanted[i] = {clamp(common.slots, layers_[i].facts), common.reason};
  }
  return wanted;
}

std::vector<CapacityChange> Controller::decide(int64_t step) {
  if (pinned_ || layers_.empty() || step % config_.interval != 0 || in_warm_up()) return {};
  const std::vector<Wanted> wishes = wanted();
  std::vector<CapacityChange> changes;
  for (size_t i = 0; i < layers_.size(); ++i) {
    int64_t& capacity = layers_[i].facts.capacity;
    if (wishes[i].slots == capacity) continue;
    changes.push_back({static_cast<int64_t>(i), capacity, wishes[i].slots, wishes[i].reason});
    capacity = wishes[i].slots;
  }
  return changes;
}

std::string_view Controller::size_key() const {
  return in_warm_up() ? std::string_view("capacity.initial") : entry_->size_key;
}

bool Controller::in_warm_up() const {
  return entry_->adaptive && observed_steps_ < config_.warmup_steps;
}

ControllerState Controller::state() const {
  ControllerState state{config_.policy, observed_steps_};
  for (const Layer& layer : layers_) {
    state.worst_case_slots.push_back(layer.facts.worst_case_slots);
    state.balanced_slots.push_back(layer.facts.balanced_slots);
    state.start_capacities.push_back(layer.start_capacity);
    state.capacities.push_back(layer.facts.capacity);
    state.demands.push_back(layer.history.demands());
    state.policy_states.push_back(layer.policy->state());
  }
  return state;
}

bool Controller::restore(const ControllerState& saved) {
  if (saved.policy != config_.policy) return false;
  const ControllerState now = state();
  if (saved.worst_case_slots != now.worst_case_slots) return false;
  if (saved.balanced_slots != now.balanced_slots) return false;
  const size_t layers = layers_.size();
  SPILLWAY_CHECK(saved.start_capacities.size() == layers && saved.capacities.size() == layers &&
                     saved.demands.size() == layers && saved.policy_states.size() == layers,
                 "the saved capacity state is not that of ", layers, " layers in every part");
  observed_steps_ = saved.observed_steps;
  const bool settled = entry_->adaptive && !in_warm_up();
  const bool keep_capacities =
      !pinned_ && (settled || saved.start_capacities == now.start_capacities);
  for (size_t i = 0; i < layers; ++i) {
    Layer& layer = layers_[i];
    layer.history = LayerHistory(layer.policy->history_steps());
    for (const int64_t demand : saved.demands[i]) layer.history.push(demand);
    layer.policy->restore(saved.policy_states[i]);
    if (keep_capacities) layer.facts.capacity = clamp(saved.capacities[i], layer.facts);
  }
  return true;
}

}  // namespace spillway::capacity
