#pragma once
// A fixture of tests/fixtures/parity and the same model in Spillway, on one rank or with its
// experts spread over two.

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "spillway/checkpoint/safetensors.h"
#include "spillway/comm/topology.h"
#include "spillway/config/config.h"
#include "spillway/ep/session.h"
#include "spillway/model/decoder.h"
#include "spillway/optim/adamw.h"

namespace spillway::parity {

/// The names of the cases: the folders of tests/fixtures/parity.
std::vector<std::string> case_names();
/// Those with balance and z terms in gradients and updates.
std::vector<std::string> case_names_with_terms();
/// The folder that holds a case, or the path of a file beside the cases.
std::string fixture_path(const std::string& name);
nlohmann::json read_json(const std::string& path);

/// What transformers has computed.
struct Fixture {
  explicit Fixture(const std::string& name);
  /// A copy of a tensor of expected.safetensors; fails the test by throwing when there is none.
  Tensor tensor(Context& ctx, const std::string& tensor_name) const;
  int64_t num_moe_layers() const { return static_cast<int64_t>(expected["aux"].size()); }

  std::string name;
  std::string folder;
  nlohmann::json expected;
  checkpoint::SafetensorsFile file;
  config::Config config;
};

/// |a - b| / |b| in L2 over all elements, in f64; |a| when b is zero.
double relative_l2(const Tensor& a, const Tensor& b);
double relative(double a, double b);
/// Prints "case: what 1.2e-07, at most 1e-05" on rank 0 and says whether it holds (NaN does not).
testing::AssertionResult within(const std::string& case_name, const std::string& what, double error,
                                double tolerance);

/// The decoder with the fixture's weights, and all that a step needs.
class ParityModel {
 public:
  /// `config` is the fixture's, or one that a test has changed. Every rank takes its share of the
  /// sequences; ep is the number of ranks. Without `with_terms` the objective is the loss alone.
  ParityModel(const Fixture& fixture, const config::Config& config, bool with_terms);

  /// Logits of this rank's tokens.
  Tensor logits();
  /// Forward, backward and the sum over ranks. Fills what stands below.
  void compute_gradients();
  /// Clips and updates; counts from 1.
  void update(int64_t step);

  /// Writes a checkpoint below the folder, which all ranks see; the path of it.
  std::string save(const std::string& run_dir);

  comm::Communicator& world() { return *world_; }
  /// Sum over all ranks.
  double sum_over_ranks(double value);
  /// This rank's rows of a tensor whose first dimension is the tokens of the whole batch.
  Tensor own_rows(const Tensor& whole) const;
  /// This rank's part of the gradient of a parameter, as the store holds it.
  Tensor own_part(const nn::Parameter& parameter, const Tensor& whole) const;

  Context ctx;
  double loss = 0.0;       ///< mean over all tokens of all ranks
  double grad_norm = 0.0;  ///< of the whole model
  std::vector<Tensor> choices;
  std::vector<double> aux_losses;  ///< a MoE layer, summed over ranks
  std::vector<double> z_losses;

 private:
  static config::Config adapted(config::Config config, bool with_terms, int num_ranks);
  Tensor own_tokens(const Fixture& fixture, int64_t shift);
  moe::MoeCall call();

  std::unique_ptr<comm::Communicator> world_;
  comm::Topology topology_;
  config::Config config_;
  ep::Session session_;

 public:
  nn::ParameterStore store;

 private:
  model::Decoder decoder_;
  optim::AdamW optimizer_;
  Tensor tokens_, targets_;
  int64_t num_tokens_;  // of all ranks
  std::vector<moe::LayerRecord> records_;
};

}  // namespace spillway::parity
