#include "parity_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>

#include "spillway/checkpoint/checkpoint.h"
#include "spillway/config/json.h"
#include "spillway/ops/basic.h"
#include "spillway/optim/grad_norm.h"
#include "spillway/plan/sizing.h"

namespace spillway::parity {
namespace {

constexpr uint64_t kUnusedSeed = 1;  // every weight is replaced by the fixture's

ep::EpConfig session_config(const config::Config& config, int ep, int64_t tokens_per_rank) {
  ep::EpConfig result{.ep = ep,
                      .num_experts = config.moe.experts,
                      .hidden = config.model.hidden,
                      .top_k = config.moe.top_k,
                      .alignment = config.moe.alignment,
                      .max_tokens_per_rank = tokens_per_rank};
  const auto layers = config::decoder_config(config).moe_layers().size();
  result.recv_capacity_per_rank.assign(
      layers, plan::worst_case_slots(ep * tokens_per_rank, config.moe.top_k,
                                     config.moe.experts / ep, config.moe.alignment));
  return result;
}

}  // namespace

std::string fixture_path(const std::string& name) {
  return std::string(SPILLWAY_SOURCE_DIR) + "/tests/fixtures/parity/" + name;
}

nlohmann::json read_json(const std::string& path) {
  std::ifstream in(path);
  SPILLWAY_CHECK(in.good(), "cannot read ", path);
  return nlohmann::json::parse(in);
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(fixture_path(""))) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> case_names_with_terms() {
  std::vector<std::string> names = case_names();
  std::erase_if(names, [](const std::string& name) {
    return !read_json(fixture_path(name + "/expected.json")).contains("objective");
  });
  return names;
}

Fixture::Fixture(const std::string& case_name)
    : name(case_name),
      folder(fixture_path(case_name)),
      expected(read_json(folder + "/expected.json")),
      file(folder + "/expected.safetensors"),
      config(config::parse(expected["config"].dump(), case_name)) {}

Tensor Fixture::tensor(Context& ctx, const std::string& tensor_name) const {
  const auto* entry = file.find(tensor_name);
  SPILLWAY_CHECK(entry != nullptr, file.path(), " has no ", tensor_name);
  Tensor result = Tensor::empty(ctx, entry->shape, entry->dtype);
  file.read(ctx, *entry, 0, result);
  return result;
}

double relative_l2(const Tensor& a, const Tensor& b) {
  SPILLWAY_CHECK(a.shape() == b.shape(), a.shape(), " is compared with ", b.shape());
  double error = 0.0, size = 0.0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    const double x = a.data<float>()[i], y = b.data<float>()[i];
    error += (x - y) * (x - y);
    size += y * y;
  }
  return std::sqrt(size > 0.0 ? error / size : error);
}

double relative(double a, double b) { return std::abs(a - b) / std::abs(b); }

testing::AssertionResult within(const std::string& case_name, const std::string& what, double error,
                                double tolerance) {
  std::ostringstream text;
  text << case_name << ": " << what << " " << std::setprecision(2) << std::scientific << error
       << ", at most " << std::setprecision(0) << tolerance;
  static const int rank = comm::make_mpi_world()->rank();  // asked by all ranks at once
  if (rank == 0) std::cout << "  " << text.str() << "\n";
  // Written so that NaN fails.
  if (error <= tolerance) return testing::AssertionSuccess();
  return testing::AssertionFailure() << text.str();
}

config::Config ParityModel::adapted(config::Config config, bool with_terms, int num_ranks) {
  moe::RouterConfig& router = config.moe.router;
  if (!with_terms) {
    router.aux_loss = moe::AuxLoss::kNone;
    router.z_coef = 0.0;
  } else if (num_ranks > 1) {
    // The batch is split over the ranks: counts of all of them make the term of the whole batch.
    router.aux_loss = moe::AuxLoss::kGlobal;
  }
  return config;
}

ParityModel::ParityModel(const Fixture& fixture, const config::Config& config, bool with_terms)
    : world_(comm::make_mpi_world()),
      topology_(*world_, world_->size()),
      config_(adapted(config, with_terms, world_->size())),
      session_(ctx, topology_),
      store(ctx, model::parameter_specs(config::decoder_config(config_), DType::kF32), kUnusedSeed,
            topology_.ep(), topology_.ep_rank()),
      decoder_(ctx, config::decoder_config(config_), store),
      optimizer_(ctx, store, topology_, config_.optim, false),
      tokens_(own_tokens(fixture, 0)),
      targets_(own_tokens(fixture, 1)),
      num_tokens_(tokens_.numel() * world_->size()) {
  session_.bootstrap(session_config(config_, topology_.ep(), tokens_.numel()));
  checkpoint::load_weights(ctx, fixture.folder, config::decoder_config(config_),
                           {.ep = topology_.ep(), .ep_rank = topology_.ep_rank()}, store);
}

Tensor ParityModel::own_tokens(const Fixture& fixture, int64_t shift) {
  const auto rows = fixture.expected["tokens"].get<std::vector<std::vector<int32_t>>>();
  const auto num_ranks = static_cast<size_t>(world_->size());
  SPILLWAY_CHECK(rows.size() % num_ranks == 0, rows.size(), " sequences on ", num_ranks, " ranks");
  const size_t count = rows.size() / num_ranks, first = count * static_cast<size_t>(world_->rank());
  std::vector<int32_t> ids;
  for (size_t i = first; i < first + count; ++i) {
    ids.insert(ids.end(), rows[i].begin() + shift, rows[i].end() - 1 + shift);
  }
  const auto num_sequences = static_cast<int64_t>(count);
  const Shape shape{num_sequences, static_cast<int64_t>(ids.size()) / num_sequences};
  return Tensor::from<int32_t>(ctx, shape, ids, Purpose::kData);
}

moe::MoeCall ParityModel::call() {
  records_.clear();
  choices.clear();
  return {.session = session_,
          .cell_scale = 1.0 / world_->size(),
          .token_scale = 1.0 / static_cast<double>(num_tokens_),
          .world = world_.get(),
          .records = &records_,
          .choices = &choices};
}

Tensor ParityModel::logits() {
  autograd::Tape tape(ctx, false);
  return decoder_.logits(tape, tokens_, call(), nullptr).value();
}

void ParityModel::compute_gradients() {
  store.zero_gradients(ctx);
  autograd::Tape tape(ctx);
  const model::ForwardResult result = decoder_.forward(tape, tokens_, targets_, call());
  tape.backward(result.objective);
  // ep is the number of ranks: each has experts of its own, whose gradients are whole.
  world_->all_reduce_sum(ctx, store.flat_gradient(nn::SyncGroup::kDense));
  loss = sum_over_ranks(result.loss_sum) / static_cast<double>(num_tokens_);
  aux_losses.clear();
  z_losses.clear();
  for (const moe::LayerRecord& record : records_) {
    aux_losses.push_back(sum_over_ranks(record.aux_loss));
    z_losses.push_back(sum_over_ranks(record.z_loss));
  }
  grad_norm =
      std::sqrt(optim::local_norm_squares(ctx, store, nn::SyncGroup::kDense) +
                sum_over_ranks(optim::local_norm_squares(ctx, store, nn::SyncGroup::kExpert)));
}

void ParityModel::update(int64_t step) {
  optimizer_.step(ctx, config_.optim.lr, optim::clip_scale(grad_norm, config_.optim.clip), step);
}

std::string ParityModel::save(const std::string& run_dir) {
  const model::DecoderConfig config = config::decoder_config(config_);
  const checkpoint::RunState state{.world = world_->size(), .ep = topology_.ep()};
  return checkpoint::save(ctx, run_dir,
                          {.topology = topology_,
                           .config = config,
                           .store = store,
                           .optimizer = optimizer_,
                           .buffers = {}},
                          state, 1)
      .path;
}

double ParityModel::sum_over_ranks(double value) {
  Tensor sum = Tensor::from<double>(ctx, {1}, std::vector<double>{value});
  world_->all_reduce_sum(ctx, sum);
  return sum.data<double>()[0];
}

Tensor ParityModel::own_rows(const Tensor& whole) const {
  const int64_t count = tokens_.numel(), first = count * world_->rank();
  return whole.rows(first, first + count);
}

Tensor ParityModel::own_part(const nn::Parameter& parameter, const Tensor& whole) const {
  if (parameter.spec.sync != nn::SyncGroup::kExpert) return whole;
  const int64_t count = parameter.value.dim(0), first = count * topology_.ep_rank();
  return whole.rows(first, first + count);
}

}  // namespace spillway::parity
