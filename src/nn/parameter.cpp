#include "spillway/nn/parameter.h"

#include "spillway/core/math.h"
#include "spillway/core/rng.h"

namespace spillway::nn {
namespace {

uint64_t name_stream(std::string_view name) {
  uint64_t hash = 0x9e3779b97f4a7c15ULL;
  for (const char c : name)
    hash = mix64(hash ^ static_cast<unsigned char>(c)) + 0x9e3779b97f4a7c15ULL;
  return hash;
}

void initialise(const ParameterSpec& spec, uint64_t seed, int64_t first_element, Tensor& value) {
  const Rng rng(seed, name_stream(spec.name));
  visit_float(value.dtype(), [&]<typename T>() {
    T* const out = value.data<T>();
    const int64_t n = value.numel();
    using A = acc_t<T>;
    for (int64_t i = 0; i < n; ++i) {
      A start = 0;
      if (spec.init.kind == Init::Kind::kOnes) start = 1;
      if (spec.init.kind == Init::Kind::kNormal) {
        start =
            static_cast<A>(spec.init.std * rng.normal_at(static_cast<uint64_t>(first_element + i)));
      }
      out[i] = T(start);
    }
  });
}

}  // namespace

Shape ParameterSpec::local_shape(int64_t ep) const {
  if (sync != SyncGroup::kExpert) return shape;
  SPILLWAY_CHECK(shape.rank() == 3 && shape[0] % ep == 0, "expert parameter ", name, " of ", shape,
                 " over ep = ", ep);
  return {shape[0] / ep, shape[1], shape[2]};
}

ParameterStore::ParameterStore(Context& ctx, const std::vector<ParameterSpec>& specs, uint64_t seed,
                               int64_t ep, int64_t ep_rank) {
  if (specs.empty()) return;
  allocate(ctx, specs, ep);
  std::array<int64_t, 2> offset{};
  for (const ParameterSpec& spec : specs) {
    SPILLWAY_CHECK(!index_.contains(spec.name), "two parameters are named ", spec.name);
    const Shape local = spec.local_shape(ep);
    int64_t& begin = offset[static_cast<size_t>(spec.sync)];
    Tensor value = flat_value(spec.sync).slice(begin, local);
    Tensor gradient = flat_gradient(spec.sync).slice(begin, local);
    const int64_t first = spec.sync == SyncGroup::kExpert ? ep_rank * local.numel() : 0;
    initialise(spec, seed, first, value);
    index_.emplace(spec.name, parameters_.size());
    parameters_.push_back(
        {spec, autograd::Variable::leaf(spec.name, value, gradient), value, gradient, begin});
    begin += round_up(local.numel(), kGradientAlignment);
  }
}

void ParameterStore::allocate(Context& ctx, const std::vector<ParameterSpec>& specs, int64_t ep) {
  const DType dtype = specs.front().dtype;
  std::array<int64_t, 2> size{};
  for (const ParameterSpec& spec : specs) {
    SPILLWAY_CHECK(spec.dtype == dtype, "parameter ", spec.name, " is ", dtype_name(spec.dtype),
                   ", the others are ", dtype_name(dtype));
    size[static_cast<size_t>(spec.sync)] +=
        round_up(spec.local_shape(ep).numel(), kGradientAlignment);
  }
  for (size_t group = 0; group < size.size(); ++group) {
    const Shape flat{size[group]};
    values_[group] = Tensor::zeros(ctx, flat, dtype, Purpose::kWeights);
    gradients_[group] = Tensor::zeros(ctx, flat, accumulator_dtype(dtype), Purpose::kGradients);
  }
}

Parameter& ParameterStore::at(std::string_view name) {
  const auto it = index_.find(name);
  if (it == index_.end()) throw Error(str("the model has no parameter '", name, "'"));
  return parameters_[it->second];
}

void ParameterStore::zero_gradients() {
  for (Tensor& gradient : gradients_) {
    if (gradient.defined()) gradient.zero();
  }
}

}  // namespace spillway::nn
