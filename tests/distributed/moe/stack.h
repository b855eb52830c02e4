#pragma once
// MoE layers in a world of MPI ranks without data files or trainer: settings, what they are built
// from, and comparisons of two runs on this rank.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "spillway/comm/topology.h"
#include "spillway/ep/session.h"
#include "spillway/model/decoder.h"

namespace spillway::moe::test {

inline constexpr int64_t kExperts = 8;
inline constexpr int64_t kTopK = 2;
inline constexpr int64_t kHidden = 16;
inline constexpr int64_t kBatch = 4;
inline constexpr int64_t kSeq = 16;
inline constexpr int64_t kTokens = kBatch * kSeq;
inline constexpr int64_t kVocabulary = 64;

enum class Routing {
  kLearned,
  kBalanced,      ///< experts dealt out in turn
  kEmptyExperts,  ///< a strong selection bias keeps every expert of odd number empty
};

struct Setting {
  int ep = 1;
  int64_t layers = 3;
  DType dtype = DType::kF32;
  int64_t alignment = 1;
  Routing routing = Routing::kLearned;
  /// Capacity as a share of the balanced demand, beyond which drops happen; 0: room for all.
  double of_balanced = 0.0;
  plan::DropOrder order = plan::DropOrder::kTail;
  bool renormalize = false;
};

/// The job's ranks as one EP group, and as two: smaller groups are those of a smaller job.
/// Evaluated when the tests are registered: MPI is up by then.
std::vector<int> all_ep();
std::string ep_name(int ep);  ///< "ep2dp4"

/// Every case with one EP group, and every other one with two: what is left out runs in a job of
/// another size.
template <typename Case>
std::vector<std::tuple<int, Case>> grid(std::span<const Case> cases) {
  std::vector<std::tuple<int, Case>> all;
  for (const int ep : all_ep()) {
    const bool whole = ep == all_ep().back();
    for (size_t i = 0; i < cases.size(); i += whole ? 1 : 2) all.emplace_back(ep, cases[i]);
  }
  return all;
}

model::DecoderConfig decoder_config(const Setting& setting);
ep::EpConfig ep_config(const Setting& setting);
/// Slots for any routing, a layer.
int64_t worst_case(const Setting& setting);

/// The world, parameters of a whole decoder (seeded alike everywhere), and an EP session.
struct Base {
  explicit Base(const Setting& setting, model::RecomputeConfig recompute = {});
  bool is_root() const { return world->rank() == 0; }
  /// The same on every rank: the sum, the largest.
  int64_t sum_over_ranks(int64_t value) const;
  int64_t max_over_ranks(int64_t value) const;
  /// Writes NaNs over the memory that was released, and moves what is allocated next elsewhere.
  void churn();

  Setting setting;
  model::DecoderConfig config;
  std::unique_ptr<comm::Communicator> world;
  Context ctx;
  comm::Topology topology;
  nn::ParameterStore store;
  ep::Session session;

 private:
  std::vector<Tensor> blocks_;
};

/// Weights of every expert of odd number out of reach of the router, where the setting says so.
void apply_routing(const Setting& setting, Tensor selection_bias);

/// i32 [kBatch, kSeq], other ones on every rank and for every `seed`.
Tensor random_tokens(Base& base, uint64_t seed);

/// This rank's gradients by name, as floats.
using Gradients = std::map<std::string, std::vector<double>>;
Gradients gradients_of(const nn::ParameterStore& store);
double largest(const Gradients& gradients);

struct Tolerance {
  double relative;  ///< L2 over a parameter
  double absolute;  ///< for a parameter whose gradient is all but zero, a share of the largest
};
/// Of the contract: a run that computes again adds in the same order, so most agree in every bit.
Tolerance tolerance_of(DType dtype);
::testing::AssertionResult close(const Gradients& actual, const Gradients& expected,
                                 const Tolerance& tolerance);
::testing::AssertionResult close(double actual, double expected, const Tolerance& tolerance);
/// Every count and every sum of a ledger.
::testing::AssertionResult same(const ep::Ledger& actual, const ep::Ledger& expected);
::testing::AssertionResult same(const std::vector<LayerRecord>& actual,
                                const std::vector<LayerRecord>& expected);
::testing::AssertionResult same(const std::vector<Tensor>& actual,
                                const std::vector<Tensor>& expected);
int64_t dropped(const std::vector<LayerRecord>& records);  ///< in this EP group
/// Balanced or empty experts, as the setting says.
void expect_routing(const Setting& setting, const std::vector<LayerRecord>& records);

}  // namespace spillway::moe::test
