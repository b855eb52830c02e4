#pragma once
// Parameters by name. A spec says everything about a parameter without allocating it; a store owns
// the parameters of this rank.

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/autograd/variable.h"

namespace spillway::nn {

/// Over which ranks a parameter's gradient is summed.
enum class SyncGroup {
  kDense,   ///< replicated on every rank: the world
  kExpert,  ///< dimension 0 is the experts, split over the EP group: the dp ranks
};

/// How a parameter starts.
struct Init {
  enum class Kind { kNormal, kOnes, kZeros };
  Kind kind = Kind::kNormal;
  double std = 0.02;
};

struct ParameterSpec {
  std::string name;
  Shape shape;  ///< of the whole model; a rank holds 1/ep of dimension 0 of expert parameters
  DType dtype = DType::kF32;
  bool decay = true;  ///< weight decay applies
  SyncGroup sync = SyncGroup::kDense;
  Init init;

  /// The shape that one rank holds.
  Shape local_shape(int64_t ep) const;
};

struct Parameter {
  ParameterSpec spec;
  autograd::Variable variable;
  Tensor value;     ///< what the model computes with; local shape, spec.dtype
  Tensor gradient;  ///< accumulator dtype, zeroed by zero_gradients, added to by backward
  int64_t gradient_offset = 0;  ///< first element in flat_gradient and flat_value of spec.sync
};

/// The parameters of this rank in the order of their specs. Elements start as a function of
/// (seed, name, index in the whole model), so any ep gives the same model.
class ParameterStore {
 public:
  /// Allocates and initialises; all specs have one dtype. `ep_rank` picks the slice of expert
  /// parameters.
  ParameterStore(Context& ctx, const std::vector<ParameterSpec>& specs, uint64_t seed, int64_t ep,
                 int64_t ep_rank);
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  std::vector<Parameter>& all() { return parameters_; }
  const std::vector<Parameter>& all() const { return parameters_; }
  /// Throws Error naming the parameter when there is none.
  Parameter& at(std::string_view name);
  void zero_gradients(Context& ctx);
  /// Elements [begin, begin + out.numel()) of the parameter's local value as they started, whatever
  /// has become of them; in f32 they are those that a bf16 value was rounded from.
  void initial_values(Context& ctx, const Parameter& parameter, int64_t begin, Tensor& out) const;

  /// The gradients of one sync group in one flat tensor, in the order of the parameters; each
  /// parameter's gradient is a slice of it, starting at a multiple of kGradientAlignment elements
  /// (the gaps stay zero). One sum over ranks, one norm, one memset.
  Tensor& flat_gradient(SyncGroup group) { return gradients_[static_cast<size_t>(group)]; }
  /// The values of one sync group, in the parameters' dtype and with the offsets of
  /// flat_gradient: `Parameter::value` is a slice of it. The gaps are zero.
  Tensor& flat_value(SyncGroup group) { return values_[static_cast<size_t>(group)]; }
  static constexpr int64_t kGradientAlignment = 16;

 private:
  void allocate(Context& ctx, const std::vector<ParameterSpec>& specs, int64_t ep);

  uint64_t seed_;
  int64_t ep_rank_;
  std::vector<Parameter> parameters_;
  std::array<Tensor, 2> gradients_;  // by sync group
  std::array<Tensor, 2> values_;     // by sync group
  std::map<std::string, size_t, std::less<>> index_;
};

}  // namespace spillway::nn
