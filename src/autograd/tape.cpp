#include "spillway/autograd/tape.h"

#include <algorithm>

namespace spillway::autograd {

void Backward::give(int i, Tensor gradient) {
  if (!wants(i) || !gradient.defined()) return;
  inputs_[static_cast<size_t>(i)]->add(ctx_, std::move(gradient));
}

Variable Tape::make(Tensor value, Shape shape, DType dtype, std::shared_ptr<Gradient> gradient) {
  Variable variable;
  variable.value_ = std::move(value);
  variable.shape_ = shape;
  variable.dtype_ = dtype;
  variable.gradient_ = std::move(gradient);
  return variable;
}

std::vector<std::shared_ptr<Gradient>> Tape::append(
    const char* op, const std::vector<std::pair<Shape, DType>>& outputs,
    const std::vector<Variable>& inputs, BackwardFn backward) {
  std::vector<std::shared_ptr<Gradient>> gradients(outputs.size());
  bool needed = false;
  for (const Variable& input : inputs) needed = needed || input.requires_grad();
  if (!recording_ || !needed) return gradients;

  Entry entry{op, {}, {}, std::move(backward), nullptr};
  for (const Variable& input : inputs) {
    entry.inputs.push_back(input.gradient_);
    // Uses are counted when a region runs forward, and walked when it has been run again.
    if (input.gradient_ && input.gradient_->is_leaf() && mode_ != Mode::kRecompute) {
      ++input.gradient_->pending_uses_;
      open_leaves_.insert(input.gradient_);
      if (mode_ == Mode::kRegionForward) region_->leaf_uses.push_back(input.gradient_);
    }
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    gradients[i] = std::make_shared<Gradient>(outputs[i].first, outputs[i].second);
  }
  entry.outputs = gradients;
  if (mode_ != Mode::kRegionForward) entries_.push_back(std::move(entry));
  return gradients;
}

Variable Tape::record(const char* op, Tensor output, std::vector<Variable> inputs,
                      BackwardFn backward) {
  std::vector<Tensor> outputs;
  outputs.push_back(std::move(output));
  return record(op, std::move(outputs), std::move(inputs), std::move(backward)).front();
}

std::vector<Variable> Tape::record(const char* op, std::vector<Tensor> outputs,
                                   std::vector<Variable> inputs, BackwardFn backward) {
  std::vector<std::pair<Shape, DType>> described;
  for (const Tensor& output : outputs) described.emplace_back(output.shape(), output.dtype());
  const auto gradients = append(op, described, inputs, std::move(backward));
  std::vector<Variable> results;
  for (size_t i = 0; i < outputs.size(); ++i) {
    results.push_back(
        make(std::move(outputs[i]), described[i].first, described[i].second, gradients[i]));
  }
  return results;
}

Variable Tape::record_without_value(const char* op, Shape shape, DType dtype,
                                    std::vector<Variable> inputs, BackwardFn backward) {
  SPILLWAY_CHECK(recomputing(), op, " gives no value outside a recomputed region");
  return make(Tensor(), shape, dtype, append(op, {{shape, dtype}}, inputs, std::move(backward))[0]);
}

void Tape::backward(const Variable& root, Tensor seed) {
  SPILLWAY_CHECK(recording_ && mode_ == Mode::kNormal, "backward on a tape that does not record");
  struct Scope {
    Tape& tape;
    bool was_in_backward = tape.ctx_.counters().set_in_backward(true);
    ~Scope() {
      tape.ctx_.counters().set_in_backward(was_in_backward);
      tape.clear();
    }
  } scope{*this};
  if (!root.requires_grad()) return;
  if (!seed.defined()) {
    SPILLWAY_CHECK(root.shape().numel() == 1, "backward from ", root.shape(), " needs a seed");
    seed = Tensor::zeros(ctx_, root.shape(), root.dtype());
    visit_float(root.dtype(), [&]<typename T>() { seed.data<T>()[0] = T(1.0F); });
  }
  root.gradient_->add(ctx_, std::move(seed));
  walk();
}

void Tape::walk() {
  while (!entries_.empty()) {
    // Moved out first: the entry's memory goes as soon as it has been walked.
    Entry entry = std::move(entries_.back());
    entries_.pop_back();
    std::vector<Tensor> gradients;
    bool reached = false;
    for (const auto& output : entry.outputs) {
      gradients.push_back(output->take());
      reached = reached || gradients.back().defined();
    }
    if (reached) {
      Backward b(ctx_, std::move(gradients), entry.inputs);
      entry.backward(b);
    } else if (entry.region) {
      // Nothing downstream used it and it is not run again: its leaves are done all the same.
      for (const auto& leaf : entry.region->leaf_uses) leaf_walked(leaf);
    }
    for (const auto& input : entry.inputs) {
      if (input && input->is_leaf()) leaf_walked(input);
    }
  }
}

void Tape::leaf_walked(const std::shared_ptr<Gradient>& leaf) {
  if (--leaf->pending_uses_ > 0) return;
  open_leaves_.erase(leaf);
  if (leaf_hook_) leaf_hook_(leaf->name());
}

std::vector<Variable> Tape::region(const RegionOptions& options, const Variable& x,
                                   RegionBody body) {
  if (!recording_) return body(x);
  SPILLWAY_CHECK(mode_ == Mode::kNormal, "recompute regions do not nest");
  auto state = std::make_shared<RegionState>(saved_bytes_);
  state->save.insert(options.save.begin(), options.save.end());
  state->save.insert(std::string(kAlwaysSaved));

  std::vector<Tensor> values;
  {
    struct Scope {
      Tape& tape;
      ~Scope() {
        tape.mode_ = Mode::kNormal;
        tape.region_ = nullptr;
      }
    } scope{*this};
    mode_ = Mode::kRegionForward;
    region_ = state.get();
    const Variable inside =
        make(x.value(), x.shape(), x.dtype(), std::make_shared<Gradient>(x.shape(), x.dtype()));
    for (const Variable& output : body(inside)) values.push_back(output.value());
  }
  // The anchor makes the region an entry even when x is a constant: leaves inside still want their
  // gradients.
  const Variable anchor =
      make(Tensor(), {}, DType::kF32, std::make_shared<Gradient>(Shape{}, DType::kF32));
  auto backward = [this, state, x_value = x.value(), body = std::move(body)](Backward& b) {
    recompute(b, *state, x_value, body);
  };
  std::vector<Variable> outputs =
      record("region", std::move(values), {x, anchor}, std::move(backward));
  entries_.back().region = std::move(state);
  return outputs;
}

void Tape::recompute(Backward& b, RegionState& state, const Tensor& x, const RegionBody& body) {
  std::vector<Entry> outer;
  outer.swap(entries_);
  struct Scope {
    Tape& tape;
    std::vector<Entry>& outer;
    ~Scope() {
      tape.mode_ = Mode::kNormal;
      tape.region_ = nullptr;
      tape.entries_ = std::move(outer);
    }
  } scope{*this, outer};
  region_ = &state;
  mode_ = Mode::kRecompute;
  const Variable inside =
      make(x, x.shape(), x.dtype(), std::make_shared<Gradient>(x.shape(), x.dtype()));
  {
    const std::vector<Variable> outputs = body(inside);
    for (size_t i = 0; i < outputs.size(); ++i) {
      Tensor gradient = b.take_grad(static_cast<int>(i));
      if (!gradient.defined() || !outputs[i].requires_grad()) continue;
      outputs[i].gradient_->add(ctx_, std::move(gradient));
    }
  }
  mode_ = Mode::kNormal;
  region_ = nullptr;
  // Only the inner entries are there now; the outer ones come back with the scope.
  walk();
  b.give(0, inside.gradient_->take());
}

Tape::RegionState::~RegionState() {
  for (const auto& [name, values] : kept) {
    for (const Kept& value : values) saved.at(name).current_bytes -= value.bytes;
  }
}

void Tape::keep(std::string_view name, std::any value, int64_t bytes) {
  region_->kept[std::string(name)].push_back({std::move(value), bytes});
  MemoryUse& use = saved_bytes_[std::string(name)];
  use.current_bytes += bytes;
  use.peak_bytes = std::max(use.peak_bytes, use.current_bytes);
}

std::any Tape::take_kept(std::string_view name) {
  const auto values = region_->kept.find(name);
  SPILLWAY_CHECK(values != region_->kept.end() && !values->second.empty(),
                 "a recomputed region asks for '", name, "' more often than its forward did");
  Kept first = std::move(values->second.front());
  values->second.pop_front();
  saved_bytes_.at(values->first).current_bytes -= first.bytes;
  return std::move(first.value);
}

void Tape::reset_saved_peaks() {
  for (auto& [name, use] : saved_bytes_) use.peak_bytes = use.current_bytes;
}

void Tape::clear() {
  for (const auto& leaf : open_leaves_) leaf->pending_uses_ = 0;
  open_leaves_.clear();
  entries_.clear();
}

}  // namespace spillway::autograd
