#pragma once
// A model of six parameters for the tests of optim: dense and expert ones interleaved, sizes that
// leave gaps in the flat layout, 4 experts so that ep may be 1, 2 or 4.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/comm/topology.h"
#include "spillway/nn/parameter.h"
#include "spillway/optim/adamw.h"

namespace spillway::optim {

inline constexpr uint64_t kModelSeed = 5;

inline nn::ParameterSpec spec_of(const std::string& name, Shape shape, DType dtype,
                                 nn::SyncGroup sync = nn::SyncGroup::kDense) {
  nn::ParameterSpec spec;
  spec.name = name;
  spec.shape = shape;
  spec.dtype = dtype;
  spec.sync = sync;
  return spec;
}

inline std::vector<nn::ParameterSpec> small_model(DType dtype = DType::kF32) {
  std::vector<nn::ParameterSpec> specs{
      spec_of("embed", {7, 6}, dtype),
      spec_of("norm", {6}, dtype),
      spec_of("up", {4, 6, 10}, dtype, nn::SyncGroup::kExpert),
      spec_of("router", {4, 6}, dtype),
      spec_of("down", {4, 5, 6}, dtype, nn::SyncGroup::kExpert),
      spec_of("head", {7, 6}, dtype),
  };
  specs[1].decay = false;
  specs[1].init.kind = nn::Init::Kind::kOnes;
  return specs;
}

/// A world of this process alone.
struct OneRank {
  std::unique_ptr<comm::Communicator> world = comm::make_self_communicator();
  comm::Topology topology{*world, 1};
};

/// What this rank holds of `name`'s state; Error when that is nothing.
inline const StatePiece& piece_of(const AdamW& adamw, std::string_view name) {
  for (const StatePiece& piece : adamw.pieces()) {
    if (piece.parameter->spec.name == name) return piece;
  }
  throw Error(str("no state of ", name, " here"));
}

/// Sets each gradient element to `f(position of its parameter, index in the whole model)`.
template <typename F>
void fill_gradients(nn::ParameterStore& store, int64_t ep_rank, F&& f) {
  int64_t position = 0;
  for (nn::Parameter& parameter : store.all()) {
    const bool expert = parameter.spec.sync == nn::SyncGroup::kExpert;
    const int64_t n = parameter.gradient.numel();
    const int64_t first = expert ? ep_rank * n : 0;
    visit_float(parameter.gradient.dtype(), [&]<typename T>() {
      T* const out = parameter.gradient.data<T>();
      for (int64_t i = 0; i < n; ++i) out[i] = T(f(position, first + i));
    });
    ++position;
  }
}

/// Calls `f(parameter, position, local index, index in the whole model)` for every element.
template <typename F>
void for_each_element(nn::ParameterStore& store, int64_t ep_rank, F&& f) {
  int64_t position = 0;
  for (nn::Parameter& parameter : store.all()) {
    const bool expert = parameter.spec.sync == nn::SyncGroup::kExpert;
    const int64_t n = parameter.value.numel();
    for (int64_t i = 0; i < n; ++i) f(parameter, position, i, expert ? ep_rank * n + i : i);
    ++position;
  }
}

}  // namespace spillway::optim
