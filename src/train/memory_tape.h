#pragma once
// The tape of autograd once more, over blocks of memory that are counted and not allocated: what a
// step holds, and when, without a byte of it. Lifetimes are those of autograd/tape.h: a block lives
// as long as somebody refers to it.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/runtime/allocator.h"
#include "spillway/tensor/dtype.h"

namespace spillway::train::memory {

/// What is there now and was there at most, as `Allocator` counts it.
class Ledger {
 public:
  void add(Purpose purpose, int64_t bytes);
  void remove(Purpose purpose, int64_t bytes);
  /// Scratch that is gone when the call that needs it returns.
  void pass(int64_t workspace_bytes);
  int64_t peak(Purpose purpose) const { return uses_[static_cast<size_t>(purpose)].peak_bytes; }
  /// Of the sum: purposes have their peaks at different moments.
  int64_t total_peak() const { return total_.peak_bytes; }

  /// What named saves hold, as autograd::Tape counts it.
  void keep(std::string_view name, int64_t bytes);
  void take_kept(std::string_view name, int64_t bytes);
  int64_t saved_peak(std::string_view name) const;

 private:
  std::array<MemoryUse, kNumPurposes> uses_{};
  std::map<std::string, MemoryUse, std::less<>> saved_;
  MemoryUse total_;
};

class Block {
 public:
  Block(Ledger& ledger, Purpose purpose, int64_t bytes)
      : ledger_(ledger), purpose_(purpose), bytes_(bytes) {
    ledger_.add(purpose_, bytes_);
  }
  ~Block() { ledger_.remove(purpose_, bytes_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  Purpose purpose() const { return purpose_; }
  int64_t bytes() const { return bytes_; }

 private:
  Ledger& ledger_;
  Purpose purpose_;
  int64_t bytes_;
};
using BlockPtr = std::shared_ptr<const Block>;

/// Rows x columns of a dtype: all that sizes depend on.
struct Form {
  int64_t rows = 0;
  int64_t columns = 1;
  DType dtype = DType::kF32;
  int64_t elements() const { return rows * columns; }
  int64_t bytes() const { return elements() * dtype_bytes(dtype); }
};

/// Gathers the gradient of a variable, or counts the uses of a leaf, whose buffer is there anyway.
struct Gradient {
  Form form;
  BlockPtr block;
  int leaf = -1;  ///< index of the parameter; -1: no leaf
  int64_t pending_uses = 0;
};
using GradientPtr = std::shared_ptr<Gradient>;

struct Variable {
  Form form;
  BlockPtr block;  ///< null: no value (in a region that is computed again), or a parameter
  GradientPtr gradient;
};

class Tape;

/// What the backward of an op sees.
class Backward {
 public:
  Backward(Tape& tape, std::vector<BlockPtr> outputs, std::span<const GradientPtr> inputs)
      : tape_(tape), outputs_(std::move(outputs)), inputs_(inputs) {}
  Tape& tape() const { return tape_; }
  const BlockPtr& grad(size_t i = 0) const { return outputs_.at(i); }
  BlockPtr take_grad(size_t i = 0) { return std::move(outputs_.at(i)); }
  void give(size_t i, BlockPtr gradient);

 private:
  Tape& tape_;
  std::vector<BlockPtr> outputs_;
  std::span<const GradientPtr> inputs_;
};
using BackwardFn = std::function<void(Backward&)>;

class Tape {
 public:
  explicit Tape(Ledger& ledger) : ledger_(ledger) {}
  Ledger& ledger() { return ledger_; }
  BlockPtr empty(const Form& form, Purpose purpose = Purpose::kActivations) {
    return std::make_shared<const Block>(ledger_, purpose, form.bytes());
  }

  std::vector<Variable> record(const std::vector<std::pair<Form, BlockPtr>>& outputs,
                               const std::vector<Variable>& inputs, BackwardFn backward);
  Variable record(const Form& form, BlockPtr output, const std::vector<Variable>& inputs,
                  BackwardFn backward) {
    return record({{form, std::move(output)}}, inputs, std::move(backward)).front();
  }
  void backward(const Variable& root);
  void on_leaf_ready(std::function<void(int leaf)> hook) { leaf_hook_ = std::move(hook); }

  using RegionBody = std::function<Variable(const Variable&)>;
  Variable region(const std::vector<std::string>& save, const Variable& x, RegionBody body);
  bool recomputing() const { return mode_ == Mode::kRecompute; }
  /// Blocks that `compute` makes, kept when the region saves `name`. `host_bytes`: of the same
  /// value, but no tensor.
  template <typename F>
  std::vector<BlockPtr> saved(std::string_view name, F&& compute, int64_t host_bytes = 0);

 private:
  enum class Mode { kNormal, kRegionForward, kRecompute };
  struct RegionState {
    std::set<std::string, std::less<>> save;
    std::map<std::string, std::deque<std::vector<BlockPtr>>, std::less<>> kept;
  };
  struct Entry {
    std::vector<GradientPtr> inputs, outputs;
    BackwardFn backward;
  };
  void walk();

  Ledger& ledger_;
  Mode mode_ = Mode::kNormal;
  RegionState* region_ = nullptr;
  std::vector<Entry> entries_;
  std::function<void(int)> leaf_hook_;
};

template <typename F>
std::vector<BlockPtr> Tape::saved(std::string_view name, F&& compute, int64_t host_bytes) {
  if (region_ == nullptr || !region_->save.contains(name)) return compute();
  std::deque<std::vector<BlockPtr>>& kept = region_->kept[std::string(name)];
  const auto bytes_of = [host_bytes](const std::vector<BlockPtr>& blocks) {
    int64_t bytes = host_bytes;
    for (const BlockPtr& block : blocks) bytes += block->bytes();
    return bytes;
  };
  if (mode_ == Mode::kRegionForward) {
    kept.push_back(compute());
    ledger_.keep(name, bytes_of(kept.back()));
    return kept.back();
  }
  std::vector<BlockPtr> result = std::move(kept.front());
  kept.pop_front();
  ledger_.take_kept(name, bytes_of(result));
  return result;
}

}  // namespace spillway::train::memory
