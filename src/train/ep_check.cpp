// The comparison of the EP self-check and its table.
#include "spillway/train/ep_check.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "spillway/model/decoder.h"

namespace spillway::train {
namespace {

/// Of one parameter in one step, summed over the ranks that hold parts of it.
struct Deviation {
  double error_squares = 0.0;
  double squares = 0.0;  ///< at ep = 1
  double largest = 0.0;  ///< absolute value at ep = 1

  /// Relative L2 error; the error itself where the values are all zero.
  double relative() const {
    return squares > 0.0 ? std::sqrt(error_squares / squares) : std::sqrt(error_squares);
  }
};

/// A NaN is worse than any number.
bool worse(double a, double b) { return std::isnan(a) ? !std::isnan(b) : a > b; }

Deviation deviation(const std::vector<float>& one, const std::vector<float>& other) {
  SPILLWAY_CHECK(one.size() == other.size(), "the runs hold ", one.size(), " and ", other.size(),
                 " elements of a parameter");
  Deviation d;
  for (size_t i = 0; i < one.size(); ++i) {
    const double x = one[i], error = static_cast<double>(other[i]) - x;
    d.error_squares += error * error;
    d.squares += x * x;
    d.largest = std::max(d.largest, std::fabs(x));
  }
  return d;
}

/// One for each parameter, in the order of `specs`: parts of expert parameters put together, and of
/// the copies the worst. The same on every rank.
std::vector<Deviation> over_ranks(const comm::Topology& topology,
                                  const std::vector<nn::ParameterSpec>& specs,
                                  const HeldValues& one, const HeldValues& other) {
  std::vector<Deviation> mine;
  for (const nn::ParameterSpec& spec : specs) {
    mine.push_back(deviation(one.at(spec.name), other.at(spec.name)));
  }
  const auto world = static_cast<size_t>(topology.world().size());
  std::vector<Deviation> all(mine.size() * world);
  topology.world().all_gather(mine.data(), all.data(),
                              static_cast<int64_t>(mine.size() * sizeof(Deviation)));
  const auto ep = static_cast<size_t>(topology.ep());
  std::vector<Deviation> worst(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    const size_t parts = specs[i].sync == nn::SyncGroup::kExpert ? ep : 1;
    for (size_t first = 0; first < world; first += parts) {
      Deviation whole;
      for (size_t rank = first; rank < first + parts; ++rank) {
        const Deviation& part = all[rank * mine.size() + i];
        whole.error_squares += part.error_squares;
        whole.squares += part.squares;
        whole.largest = std::max(whole.largest, part.largest);
      }
      if (first == 0 || worse(whole.relative(), worst[i].relative())) worst[i] = whole;
    }
  }
  return worst;
}

/// "model.layers.3.mlp.gate.weight" -> "model.layers.*.mlp.gate.weight".
std::string group_name(const std::string& name) {
  const std::string prefix = "model.layers.";
  if (name.compare(0, prefix.size(), prefix) != 0) return name;
  return prefix + "*" + name.substr(name.find('.', prefix.size()));
}

struct Group {
  std::string name;
  std::string worst;  ///< parameter; empty when all are equal
  double relative = 0.0;
  double largest = 0.0;
};

std::vector<Group> by_group(const std::vector<nn::ParameterSpec>& specs,
                            const std::vector<Deviation>& deviations) {
  std::vector<Group> groups;
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::string name = group_name(specs[i].name);
    auto group =
        std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.name == name; });
    if (group == groups.end()) group = groups.insert(groups.end(), {name});
    const double relative = deviations[i].relative();
    group->largest = std::max(group->largest, deviations[i].largest);
    if (!worse(relative, group->relative)) continue;
    group->relative = relative;
    group->worst = specs[i].name;
  }
  return groups;
}

Group worst_of(const std::vector<Group>& groups) {
  return *std::max_element(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
    return worse(b.relative, a.relative);
  });
}

/// "  layer 3" of a parameter of a layer.
std::string layer_of(const std::string& parameter) {
  const size_t begin = std::string("model.").size();
  if (parameter.find("layers.") != begin) return "";
  return "  layer " + parameter.substr(begin + 7, parameter.find('.', begin + 7) - begin - 7);
}

/// The worst of all ranks; tokens of all of them.
EpCheckFlips over_ranks(comm::Communicator& world, const EpCheckFlips& mine) {
  std::vector<EpCheckFlips> all(static_cast<size_t>(world.size()));
  world.all_gather(&mine, all.data(), sizeof(mine));
  EpCheckFlips worst;
  for (const EpCheckFlips& flips : all) {
    worst.tokens += flips.tokens;
    if (flips.tokens == 0 || (worst.layer >= 0 && flips.margin <= worst.margin)) continue;
    worst.margin = flips.margin;
    worst.layer = flips.layer;
  }
  return worst;
}

class Table {
 public:
  explicit Table(int64_t ep, int64_t world) : ep_(ep) {
    out_ << "ep check: the first steps, from the initial weights, at ep 1 x dp " << world
         << " and at ep " << ep << " x dp " << world / ep
         << ". Buffers are lossless, ZeRO is off, and\nAdamW's eps is so large that "
         << "updates follow the gradient. Gradients and weights: relative L2 of the worst layer.\n";
    out_ << std::left << std::setw(kWidth) << "" << std::right << std::setw(15) << "ep 1"
         << std::setw(15) << str("ep ", ep) << std::setw(12) << "difference" << std::setw(9)
         << "allowed"
         << "\n";
  }
  void step(size_t number) { step_ = number; }

  void scalar(const std::string& name, double one, double other, double tolerance) {
    const double scale = std::max(std::fabs(one), 1e-30);
    const double difference = one == other ? 0.0 : std::fabs(other - one) / scale;
    line(name, number(one), number(other), difference, tolerance, "");
  }
  void group(const std::string& kind, const Group& group, double tolerance) {
    const std::string where = group.worst == group.name ? "" : layer_of(group.worst);
    line(kind + " " + group.name, str("max ", number(group.largest, 3)), "", group.relative,
         tolerance, where);
  }
  void counts(int64_t layer, int64_t total, int64_t differ) {
    line(str("counts of MoE layer ", layer), str(total), str(total), static_cast<double>(differ),
         0.0, "");
  }
  void note(const std::string& text) { out_ << text << "\n"; }
  void fail(const std::string& what) {
    if (failed_.empty()) failed_ = what;
    ++failures_;
  }
  EpCheckResult result(size_t steps) {
    if (steps == 0) fail("nothing could be compared: step 1 went to other experts by rounding");
    if (failed_.empty()) {
      out_ << "ep check: ep " << ep_ << " agrees with ep 1 over " << steps
           << (steps == 1 ? " step" : " steps");
    } else {
      out_ << "ep check FAILED: " << failed_;
      if (failures_ > 1) out_ << " (and " << failures_ - 1 << " more)";
    }
    return {failed_.empty(), out_.str()};
  }

 private:
  static constexpr int kWidth = 68;
  static std::string number(double value, int digits = 9) {
    std::ostringstream out;
    out << std::setprecision(digits) << value;
    return out.str();
  }
  void line(const std::string& name, const std::string& one, const std::string& other,
            double difference, double tolerance, const std::string& more) {
    const bool ok = difference <= tolerance;  // a NaN is not
    if (!ok) {
      fail(str("step ", step_, ", ", name, ": difference ", number(difference, 3), ", allowed ",
               number(tolerance, 3), more));
    }
    out_ << std::left << std::setw(kWidth) << str("step ", step_, " ", name) << std::right
         << std::setw(15) << one << std::setw(15) << other << std::setw(12) << number(difference, 3)
         << std::setw(9) << number(tolerance, 3) << (ok ? "" : "  DIFFERS") << more << "\n";
  }

  int64_t ep_;
  size_t step_ = 0;
  std::ostringstream out_;
  std::string failed_;  // the first
  int64_t failures_ = 0;
};

void compare_counts(const EpCheckStep& one, const EpCheckStep& other,
                    const std::vector<int64_t>& layer_ids, Table& table) {
  for (size_t layer = 0; layer < one.expert_counts.size(); ++layer) {
    int64_t total = 0, differ = 0;
    for (size_t e = 0; e < one.expert_counts[layer].size(); ++e) {
      total += one.expert_counts[layer][e];
      differ += std::abs(one.expert_counts[layer][e] - other.expert_counts[layer][e]);
    }
    table.counts(layer_ids[layer], total, differ);
  }
}

}  // namespace

EpCheckTolerance ep_check_tolerance(DType dtype) {
  if (dtype == DType::kF32) {
    return {.loss = 1e-6, .gradient = 1e-5, .norm = 1e-5, .weight = 1e-5, .margin = 1e-5};
  }
  return {.loss = 1e-5, .gradient = 2e-3, .norm = 1e-3, .weight = 1e-3, .margin = 1e-3};
}

EpCheckResult compare_ep_runs(const config::Config& config, const comm::Topology& topology,
                              const std::vector<EpCheckStep>& one,
                              const std::vector<EpCheckStep>& other,
                              const std::vector<EpCheckFlips>& flips) {
  const DType dtype = config::compute_dtype(config);
  const EpCheckTolerance allowed = ep_check_tolerance(dtype);
  const model::DecoderConfig decoder = config::decoder_config(config);
  const std::vector<int64_t> layer_ids = decoder.moe_layers();
  const std::vector<nn::ParameterSpec> specs = model::parameter_specs(decoder, dtype);
  Table table(topology.ep(), topology.world().size());
  size_t steps = 0;
  for (size_t s = 0; s < one.size(); ++s) {
    table.step(s + 1);
    // Collectives first: every rank takes part in all of them.
    const EpCheckFlips flipped = over_ranks(topology.world(), flips[s]);
    const auto gradients = over_ranks(topology, specs, one[s].gradients, other[s].gradients);
    const auto weights = over_ranks(topology, specs, one[s].weights, other[s].weights);
    if (flipped.tokens > 0) {
      const std::string what = str(
          "step ", s + 1, ": ", flipped.tokens, " tokens went to other experts, first in layer ",
          layer_ids[static_cast<size_t>(flipped.layer)], ", at a margin of ", flipped.margin);
      if (!(flipped.margin < allowed.margin)) {
        table.fail(str(what, ", above ", allowed.margin, ": no matter of rounding"));
      } else {
        table.note(str(what, ", below ", allowed.margin, ": rounding; the comparison ends here"));
      }
      break;
    }
    compare_counts(one[s], other[s], layer_ids, table);
    table.scalar("loss", one[s].loss, other[s].loss, allowed.loss);
    table.scalar("aux loss", one[s].aux_loss, other[s].aux_loss, allowed.loss);
    table.scalar("z loss", one[s].z_loss, other[s].z_loss, allowed.loss);
    table.scalar("gradient norm", one[s].grad_norm, other[s].grad_norm, allowed.norm);
    for (const Group& group : by_group(specs, gradients)) {
      table.group("gradient", group, allowed.gradient);
    }
    table.group("weights after it, worst:", worst_of(by_group(specs, weights)), allowed.weight);
    ++steps;
  }
  return table.result(steps);
}

}  // namespace spillway::train
