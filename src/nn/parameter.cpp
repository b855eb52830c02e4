#include "spillway/nn/parameter.h"

#include "spillway/core/math.h"
#include "spillway/core/rng.h"
#include "spillway/kernels/fill.h"

namespace spillway::nn {
namespace {

uint64_t name_stream(std::string_view name) {
  uint64_t hash = 0x9e3779b97f4a7c15ULL;
  for (const char c : name)
    hash = mix64(hash ^ static_cast<unsigned char>(c)) + 0x9e3779b97f4a7c15ULL;
  return hash;
}

void initialise(Context& ctx, const ParameterSpec& spec, uint64_t seed, int64_t first_element,
                Tensor& value) {
  switch (spec.init.kind) {
    case Init::Kind::kOnes:
      kernels::fill(ctx, 1.0, value);
      return;
    case Init::Kind::kZeros:
      kernels::fill(ctx, 0.0, value);
      return;
    case Init::Kind::kNormal:
      kernels::fill_normal(ctx, {.x = value,
                                 .seed = seed,
                                 .stream = name_stream(spec.name),
                                 .first = first_element,
                                 .std = spec.init.std});
      return;
  }
}

int64_t first_element(const ParameterSpec& spec, int64_t ep_rank, int64_t local_numel) {
  return spec.sync == SyncGroup::kExpert ? ep_rank * local_numel : 0;
}

}  // namespace

Shape ParameterSpec::local_shape(int64_t ep) const {
  if (sync != SyncGroup::kExpert) return shape;
  SPILLWAY_CHECK(shape.rank() == 3 && shape[0] % ep == 0, "expert parameter ", name, " of ", shape,
                 " over ep = ", ep);
  return {shape[0] / ep, shape[1], shape[2]};
}

ParameterStore::ParameterStore(Context& ctx, const std::vector<ParameterSpec>& specs, uint64_t seed,
                               int64_t ep, int64_t ep_rank)
    : seed_(seed), ep_rank_(ep_rank) {
  if (specs.empty()) return;
  allocate(ctx, specs, ep);
  std::array<int64_t, 2> offset{};
  for (const ParameterSpec& spec : specs) {
    SPILLWAY_CHECK(!index_.contains(spec.name), "two parameters are named ", spec.name);
    const Shape local = spec.local_shape(ep);
    int64_t& begin = offset[static_cast<size_t>(spec.sync)];
    Tensor value = flat_value(spec.sync).slice(begin, local);
    Tensor gradient = flat_gradient(spec.sync).slice(begin, local);
    initialise(ctx, spec, seed, first_element(spec, ep_rank, local.numel()), value);
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

void ParameterStore::initial_values(Context& ctx, const Parameter& parameter, int64_t begin,
                                    Tensor& out) const {
  const ParameterSpec& spec = parameter.spec;
  const int64_t numel = parameter.value.numel();
  SPILLWAY_CHECK(begin >= 0 && begin + out.numel() <= numel, "initial values ", begin, " to ",
                 begin + out.numel(), " of ", spec.name, "; allowed: 0 to ", numel);
  initialise(ctx, spec, seed_, first_element(spec, ep_rank_, numel) + begin, out);
}

void ParameterStore::zero_gradients(Context& ctx) {
  for (Tensor& gradient : gradients_) {
    if (gradient.defined()) kernels::fill(ctx, 0.0, gradient);
  }
}

}  // namespace spillway::nn
