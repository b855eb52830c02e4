#include "spillway/config/resume_rules.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "errors.h"
#include "json_text.h"
#include "spillway/config/json.h"

namespace spillway::config {
namespace {

constexpr std::array<std::string_view, 9> kMayChange{
    "run.dir",     "parallel.",   "capacity.",         "checkpoint.",     "log.",
    "train.steps", "train.eval_", "train.micro_batch", "train.grad_accum"};

bool may_change(std::string_view path) {
  return std::any_of(kMayChange.begin(), kMayChange.end(),
                     [&](std::string_view start) { return path.starts_with(start); });
}

void add_changes(const Json& before, const Json& now, const std::string& path,
                 std::vector<KeyChange>& changes) {
  if (before == now) return;
  if (!before.is_object() || !now.is_object()) {
    changes.push_back({path, before.dump(), now.dump()});
    return;
  }
  // Both come from one field list: only the object of the policy in force may be on one side.
  for (const auto& item : now.items()) {
    const std::string inner = path.empty() ? item.key() : str(path, ".", item.key());
    const auto old = before.find(item.key());
    add_changes(old == before.end() ? Json() : *old, item.value(), inner, changes);
  }
}

}  // namespace

std::vector<KeyChange> key_changes(const Config& before, const Config& now) {
  std::vector<KeyChange> changes;
  add_changes(Json::parse(to_json_text(before)), Json::parse(to_json_text(now)), "", changes);
  return changes;
}

void check_resume(const Config& before, int64_t world_before, const Config& now,
                  int64_t world_now) {
  std::string diff;
  for (const KeyChange& change : key_changes(before, now)) {
    if (may_change(change.path)) continue;
    diff += str(diff.empty() ? "" : ", ", change.path, " ", shortened(change.before, 40), " -> ",
                shortened(change.now, 40));
  }
  if (!diff.empty()) {
    throw ConfigError(one_line(str("not the checkpoint's config: ", shortened(diff, 170),
                                   "; allowed to change: train.steps, train.eval_*, capacity.*, "
                                   "checkpoint.*, log.*, parallel.*, run.dir")));
  }
  const int64_t sequences_before = sequences_per_step(before, world_before);
  const int64_t sequences_now = sequences_per_step(now, world_now);
  if (sequences_before != sequences_now) {
    throw ConfigError(one_line(str(
        "train.micro_batch is ", now.train.micro_batch, " and train.grad_accum ",
        now.train.grad_accum, " on ", world_now, " ranks: a global batch of ", sequences_now,
        " sequences; allowed: a product of ", sequences_before, ", that of the checkpoint (world ",
        world_before, " x ", before.train.micro_batch, " x ", before.train.grad_accum, ")")));
  }
}

}  // namespace spillway::config
