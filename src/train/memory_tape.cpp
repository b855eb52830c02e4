#include "memory_tape.h"

#include <algorithm>

#include "spillway/autograd/tape.h"

namespace spillway::train::memory {
namespace {

void grow(MemoryUse& use, int64_t bytes) {
  use.current_bytes += bytes;
  use.peak_bytes = std::max(use.peak_bytes, use.current_bytes);
}

}  // namespace

void Ledger::add(Purpose purpose, int64_t bytes) {
  grow(uses_[static_cast<size_t>(purpose)], bytes);
  grow(total_, bytes);
}

void Ledger::remove(Purpose purpose, int64_t bytes) {
  uses_[static_cast<size_t>(purpose)].current_bytes -= bytes;
  total_.current_bytes -= bytes;
}

void Ledger::pass(int64_t workspace_bytes) {
  add(Purpose::kWorkspace, workspace_bytes);
  remove(Purpose::kWorkspace, workspace_bytes);
}

void Ledger::keep(std::string_view name, int64_t bytes) { grow(saved_[std::string(name)], bytes); }

void Ledger::take_kept(std::string_view name, int64_t bytes) {
  saved_.at(std::string(name)).current_bytes -= bytes;
}

int64_t Ledger::saved_peak(std::string_view name) const {
  const auto use = saved_.find(name);
  return use == saved_.end() ? 0 : use->second.peak_bytes;
}

void Backward::give(size_t i, BlockPtr gradient) {
  const GradientPtr& input = inputs_[i];
  if (input == nullptr || gradient == nullptr || input->leaf >= 0) return;
  if (input->block == nullptr) {
    input->block = std::move(gradient);
  } else if (input->block.use_count() > 1 ||
             accumulator_dtype(input->form.dtype) != input->form.dtype) {
    // As in autograd::Gradient::add: never into shared memory, and a sum of bf16 anew.
    input->block = tape_.empty(input->form);
  }
}

std::vector<Variable> Tape::record(const std::vector<std::pair<Form, BlockPtr>>& outputs,
                                   const std::vector<Variable>& inputs, BackwardFn backward) {
  Entry entry{{}, {}, std::move(backward)};
  for (const Variable& input : inputs) {
    entry.inputs.push_back(input.gradient);
    if (input.gradient && input.gradient->leaf >= 0 && mode_ != Mode::kRecompute) {
      ++input.gradient->pending_uses;
    }
  }
  std::vector<Variable> results;
  for (const auto& [form, block] : outputs) {
    entry.outputs.push_back(std::make_shared<Gradient>(Gradient{form, nullptr, -1, 0}));
    results.push_back({form, block, entry.outputs.back()});
  }
  if (mode_ != Mode::kRegionForward) entries_.push_back(std::move(entry));
  return results;
}

void Tape::backward(const Variable& root) {
  root.gradient->block = empty(root.form);
  walk();
}

void Tape::walk() {
  while (!entries_.empty()) {
    Entry entry = std::move(entries_.back());
    entries_.pop_back();
    {
      std::vector<BlockPtr> gradients;
      for (const GradientPtr& output : entry.outputs) {
        gradients.push_back(std::move(output->block));
        output->block = nullptr;
      }
      Backward b(*this, std::move(gradients), entry.inputs);
      entry.backward(b);
    }
    for (const GradientPtr& input : entry.inputs) {
      if (input && input->leaf >= 0 && --input->pending_uses == 0 && leaf_hook_) {
        leaf_hook_(input->leaf);
      }
    }
  }
}

Variable Tape::region(const std::vector<std::string>& save, const Variable& x, RegionBody body) {
  auto state = std::make_shared<RegionState>();
  state->save.insert(save.begin(), save.end());
  state->save.insert(std::string(autograd::Tape::kAlwaysSaved));

  mode_ = Mode::kRegionForward;
  region_ = state.get();
  const BlockPtr output = body({x.form, x.block, nullptr}).block;
  mode_ = Mode::kNormal;
  region_ = nullptr;

  auto again = [this, state, form = x.form, block = x.block, body](Backward& b) {
    std::vector<Entry> outer;
    outer.swap(entries_);
    mode_ = Mode::kRecompute;
    region_ = state.get();
    const Variable inside{form, block, std::make_shared<Gradient>(Gradient{form, nullptr, -1, 0})};
    {
      const Variable result = body(inside);
      result.gradient->block = b.take_grad();
    }
    mode_ = Mode::kNormal;
    region_ = nullptr;
    walk();
    entries_ = std::move(outer);
    b.give(0, std::move(inside.gradient->block));
  };
  return record(x.form, output, {x}, std::move(again));
}

}  // namespace spillway::train::memory
