// No sum follows from the capacity: experts and whole layers give the same bits with buffers of C
// and of 2C, whatever lies behind the last zone.
#include "distributed/moe/stack.h"
#include "spillway/ops/dispatch.h"
#include "support/kernel_test.h"

namespace spillway::moe::test {
namespace {

using spillway::testing::random_tensor;

struct Parts {
  int64_t capacity = 0;
  std::vector<int64_t> zone_begin, zone_rows;
  Tensor expert_out, out, dx, d_gate;
  Gradients gradients;
};

Tensor raw_rows(const Parts& parts, size_t expert) {
  return parts.expert_out.rows(parts.zone_begin[expert],
                               parts.zone_begin[expert] + parts.zone_rows[expert]);
}

class CapacityBitsTest : public ::testing::TestWithParam<std::tuple<int, DType, int64_t>> {
 protected:
  Setting setting() const {
    return {.ep = std::get<0>(GetParam()),
            .layers = 1,
            .dtype = std::get<1>(GetParam()),
            .alignment = std::get<2>(GetParam())};
  }

  /// Experts between dispatch and combine, with a seed on the combined rows.
  Parts run_experts(int64_t capacity) {
    Base base(setting());
    ep::EpConfig config = ep_config(setting());
    if (capacity > 0) {
      config.recv_capacity_per_rank = {capacity};
      base.session.reconfigure(config, ep::ReconfigureMode::kBuffers);
    }
    base.store.zero_gradients(base.ctx);
    base.churn();
    const auto rank = static_cast<uint64_t>(base.world->rank());
    const DType sums = accumulator_dtype(setting().dtype);
    const Shape rows{kTokens, kHidden}, pairs{kTokens, kTopK};
    const Variable x = Variable::leaf("x", random_tensor(base.ctx, rows, setting().dtype, rank),
                                      Tensor::zeros(base.ctx, rows, sums));
    const Variable gate =
        Variable::leaf("gate", random_tensor(base.ctx, pairs, DType::kF32, 100 + rank),
                       Tensor::zeros(base.ctx, pairs, DType::kF32));
    const Experts experts("model.layers.0.mlp.experts.", base.store);
    autograd::Tape tape(base.ctx);
    const ops::DispatchOutput sent = ops::dispatch(tape, base.session, {}, x, choices(base), gate);
    const Variable expert_out = experts(tape, sent.recv_tokens, sent.recv_gate, sent.zones);
    const Variable out = ops::combine(tape, base.session, sent.prepare.handle, {}, expert_out);
    Parts parts{.capacity = sent.prepare.handle.header.capacity,
                .zone_begin = sent.zones->begin,
                .zone_rows = sent.zones->rows,
                .expert_out = expert_out.value(),
                .out = out.value()};
    demand_ = base.max_over_ranks(sent.prepare.total_recv_tokens);
    tape.backward(out, random_tensor(base.ctx, rows, setting().dtype, 200 + rank));
    parts.dx = x.grad();
    parts.d_gate = gate.grad();
    parts.gradients = gradients_of(base.store);
    return parts;
  }

  /// Seeded: two experts a token, the low ones more often.
  static Tensor choices(Base& base) {
    Rng rng(9, static_cast<uint64_t>(base.world->rank()));
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < kTokens; ++t) {
      const auto first = static_cast<int32_t>(rng.below(kExperts) * rng.below(kExperts) / kExperts);
      const auto step = static_cast<int32_t>(1 + rng.below(kExperts - 1));
      ids.push_back(first);
      ids.push_back((first + step) % static_cast<int32_t>(kExperts));
    }
    return Tensor::from<int32_t>(base.ctx, {kTokens, kTopK}, ids);
  }

  int64_t demand_ = 0;
};

TEST_P(CapacityBitsTest, OfExpertsAndTheirWeights) {
  run_experts(0);  // for the demand
  const int64_t capacity = demand_;
  const Parts tight = run_experts(capacity), ample = run_experts(2 * capacity);
  EXPECT_EQ(tight.capacity, capacity);
  EXPECT_EQ(ample.capacity, 2 * capacity);
  EXPECT_EQ(tight.zone_rows, ample.zone_rows);
  for (size_t e = 0; e < tight.zone_rows.size(); ++e) {
    EXPECT_TRUE(spillway::testing::same_bytes(raw_rows(tight, e), raw_rows(ample, e)))
        << "local expert " << e;
  }
  EXPECT_TRUE(spillway::testing::same_bytes(tight.out, ample.out));
  EXPECT_TRUE(spillway::testing::same_bytes(tight.dx, ample.dx));
  EXPECT_TRUE(spillway::testing::same_bytes(tight.d_gate, ample.d_gate));
  EXPECT_EQ(tight.gradients, ample.gradients);
  EXPECT_GT(largest(tight.gradients), 0.0);
}

TEST_P(CapacityBitsTest, OfAWholeLayer) {
  std::vector<Gradients> gradients;
  std::vector<Tensor> outputs;
  for (const int64_t times : {1, 2}) {
    Base base(setting());
    ep::EpConfig config = ep_config(setting());
    config.recv_capacity_per_rank = {times * worst_case(setting())};
    base.session.reconfigure(config, ep::ReconfigureMode::kBuffers);
    base.store.zero_gradients(base.ctx);
    base.churn();
    const MoeLayer layer(base.ctx, base.config.moe, 0, "model.layers.0.mlp.", base.store);
    const auto rank = static_cast<uint64_t>(base.world->rank());
    const Variable x(random_tensor(base.ctx, {kTokens, kHidden}, setting().dtype, rank));
    std::vector<LayerRecord> records;
    autograd::Tape tape(base.ctx);
    const MoeOutput output = layer(
        tape, x, {.session = base.session, .token_scale = 1.0 / kTokens, .records = &records});
    EXPECT_EQ(records.at(0).ledger.capacity_end, times * worst_case(setting()));
    outputs.push_back(output.out.value().clone(base.ctx));
    tape.backward(output.out, random_tensor(base.ctx, {kTokens, kHidden}, setting().dtype, 7));
    gradients.push_back(gradients_of(base.store));
  }
  EXPECT_TRUE(spillway::testing::same_bytes(outputs[0], outputs[1]));
  EXPECT_EQ(gradients[0], gradients[1]);
  EXPECT_GT(largest(gradients[0]), 0.0);
}

INSTANTIATE_TEST_SUITE_P(Grid, CapacityBitsTest,
                         ::testing::Combine(::testing::ValuesIn(all_ep()),
                                            ::testing::Values(DType::kF32, DType::kBF16),
                                            ::testing::Values(1, 8, 128)),
                         [](const auto& test) {
                           return str(ep_name(std::get<0>(test.param)), "_",
                                      dtype_name(std::get<1>(test.param)), "_a",
                                      std::get<2>(test.param));
                         });

}  // namespace
}  // namespace spillway::moe::test
