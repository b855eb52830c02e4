#pragma once
// A linear tape: ops append an entry as they run, backward walks the entries down and frees each
// as it goes. Collectives inside ops therefore run in one order on all ranks by construction; a
// rank without tokens records them too. No recursion, no graph search.

#include <any>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/autograd/held_bytes.h"
#include "spillway/autograd/variable.h"
#include "spillway/runtime/allocator.h"

namespace spillway::autograd {

/// What the backward function of an op sees: gradients of its outputs, places for those of its
/// inputs, in the order in which `record` got them.
class Backward {
 public:
  Backward(Context& ctx, std::vector<Tensor> output_gradients,
           std::span<const std::shared_ptr<Gradient>> inputs)
      : ctx_(ctx), output_gradients_(std::move(output_gradients)), inputs_(inputs) {}

  Context& ctx() const { return ctx_; }
  /// Gradient of output i; undefined when nothing downstream used it.
  const Tensor& grad(int i = 0) const { return output_gradients_.at(static_cast<size_t>(i)); }
  /// The same, moved out, so that a kernel may overwrite it when it is `unique()`.
  Tensor take_grad(int i = 0) { return std::move(output_gradients_.at(static_cast<size_t>(i))); }
  bool wants(int i) const { return inputs_[static_cast<size_t>(i)] != nullptr; }
  /// Adds to the gradient of input i; nothing when it is a constant or `gradient` is undefined.
  void give(int i, Tensor gradient);
  /// The accumulator-dtype buffer of input i that kernels add into (weights). `wants(i)` first.
  Tensor& accumulator(int i) { return inputs_[static_cast<size_t>(i)]->accumulator(ctx_); }

 private:
  Context& ctx_;
  std::vector<Tensor> output_gradients_;
  std::span<const std::shared_ptr<Gradient>> inputs_;
};

using BackwardFn = std::function<void(Backward&)>;

/// What a recompute region keeps from its forward, by name.
struct RegionOptions {
  std::vector<std::string> save;
};

/// By name: what named saves hold now, and held at most. A save holds its value from the forward of
/// its region until the region that runs again takes it out.
using SavedBytes = std::map<std::string, MemoryUse, std::less<>>;

class Tape {
 public:
  /// `recording` false: values only (evaluation).
  explicit Tape(Context& ctx, bool recording = true) : ctx_(ctx), recording_(recording) {}
  /// Forgets uses of leaves that were recorded and never walked (a forward that failed).
  ~Tape() { clear(); }
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  Context& ctx() const { return ctx_; }
  bool recording() const { return recording_; }
  /// True while a region runs for the second time: nothing may be counted or logged again.
  bool recomputing() const { return mode_ == Mode::kRecompute; }

  /// Appends an op. The result requires a gradient when an input does and the tape records;
  /// otherwise `backward` is dropped with all that it holds.
  Variable record(const char* op, Tensor output, std::vector<Variable> inputs, BackwardFn backward);
  std::vector<Variable> record(const char* op, std::vector<Tensor> outputs,
                               std::vector<Variable> inputs, BackwardFn backward);
  /// An op whose value nobody will read (only while `recomputing()`).
  Variable record_without_value(const char* op, Shape shape, DType dtype,
                                std::vector<Variable> inputs, BackwardFn backward);

  /// Gradients of `root` with respect to every leaf are added to the leaves' buffers. `seed` is
  /// the gradient of root (default: one for a single element). Clears the tape, also on error.
  void backward(const Variable& root, Tensor seed = {});
  /// Called in backward as soon as the last recorded use of a leaf has been walked.
  void on_leaf_ready(std::function<void(const std::string& leaf)> hook) {
    leaf_hook_ = std::move(hook);
  }

  /// The body of a recompute region: outputs as a pure function of one input and of leaves.
  using RegionBody = std::function<std::vector<Variable>(const Variable&)>;
  /// Runs `body` now, keeping only `x` and the named saves, and once more in backward to have its
  /// entries (activation checkpointing, Chen et al. 2016). Regions do not nest.
  std::vector<Variable> region(const RegionOptions& options, const Variable& x, RegionBody body);

  /// Inside a region: the result of `compute`, kept when the region saves `name`, and then handed
  /// out again instead of computing a second time. `compute` returns a copyable value that
  /// `held_bytes` (autograd/held_bytes.h) knows the size of. The name `kAlwaysSaved` is kept
  /// whatever the options say. Outside a region: just `compute()`. Throws
  /// Error when a region that runs again asks for a name more often than its forward did.
  template <typename F>
  auto saved(std::string_view name, F&& compute) -> decltype(compute());

  /// Routing is decided once: a recomputed region must not choose experts again.
  static constexpr std::string_view kAlwaysSaved = "routing";

  /// Of all regions together. A name that no region has saved yet is not there.
  const SavedBytes& saved_bytes() const { return saved_bytes_; }
  /// Peaks start again from what is held now.
  void reset_saved_peaks();

  size_t num_entries() const { return entries_.size(); }
  void clear();

 private:
  enum class Mode { kNormal, kRegionForward, kRecompute };
  struct Kept {
    std::any value;
    int64_t bytes = 0;
  };
  struct RegionState {
    explicit RegionState(SavedBytes& saved_bytes) : saved(saved_bytes) {}
    ~RegionState();  // values that nobody took out are held no longer
    RegionState(const RegionState&) = delete;
    RegionState& operator=(const RegionState&) = delete;

    SavedBytes& saved;
    std::set<std::string, std::less<>> save;
    std::map<std::string, std::deque<Kept>, std::less<>> kept;  // a name: in order of asking
    std::vector<std::shared_ptr<Gradient>> leaf_uses;           // of its forward, in order
  };
  struct Entry {
    const char* op;
    std::vector<std::shared_ptr<Gradient>> inputs;
    std::vector<std::shared_ptr<Gradient>> outputs;
    BackwardFn backward;
    std::shared_ptr<RegionState> region;  // of a recompute region, else null
  };
  std::vector<std::shared_ptr<Gradient>> append(const char* op,
                                                const std::vector<std::pair<Shape, DType>>& outputs,
                                                const std::vector<Variable>& inputs,
                                                BackwardFn backward);
  void keep(std::string_view name, std::any value, int64_t bytes);
  std::any take_kept(std::string_view name);
  static Variable make(Tensor value, Shape shape, DType dtype, std::shared_ptr<Gradient> gradient);
  void walk();
  void leaf_walked(const std::shared_ptr<Gradient>& leaf);
  void recompute(Backward& b, RegionState& state, const Tensor& x, const RegionBody& body);

  Context& ctx_;
  bool recording_;
  Mode mode_ = Mode::kNormal;
  RegionState* region_ = nullptr;
  SavedBytes saved_bytes_;  // regions of the entries refer to it
  std::vector<Entry> entries_;
  std::set<std::shared_ptr<Gradient>> open_leaves_;
  std::function<void(const std::string&)> leaf_hook_;
};

template <typename F>
auto Tape::saved(std::string_view name, F&& compute) -> decltype(compute()) {
  using Result = decltype(compute());
  if (region_ == nullptr || !region_->save.contains(name)) return compute();
  if (mode_ == Mode::kRecompute) return std::any_cast<Result>(take_kept(name));
  Result result = compute();
  keep(name, result, held_bytes(result));
  return result;
}

}  // namespace spillway::autograd
