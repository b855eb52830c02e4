// Logits, gradients and training against transformers on PyTorch, from the same weights.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "parity_model.h"

namespace spillway::parity {
namespace {

/// Both programs compute in fp32; sums of some dozen terms in another order differ by a few 1e-7.
constexpr double kLogits = 1e-5;
constexpr double kLoss = 1e-5;
/// A gradient passes through twice as many products, some with cancellation.
constexpr double kGradient = 1e-4;
/// AdamW divides by the size of the gradient, so that rounding errors of tiny elements are seen at
/// full length; the loss is a mean over all of them.
constexpr double kTrainingLoss = 1e-5;
/// A balance or z term of a layer, a mean over the tokens.
constexpr double kTerm = 1e-5;

std::string case_label(const testing::TestParamInfo<std::string>& info) { return info.param; }

/// The matrices that one parameter consists of, so that none hides behind a larger one: of each
/// expert the gate and up rows and the down projection.
std::vector<std::pair<std::string, Tensor>> parts_of(const std::string& name, const Tensor& t) {
  const bool gate_up = name.ends_with("gate_up_proj");
  if (t.shape().rank() != 3) return {{name, t}};
  std::vector<std::pair<std::string, Tensor>> parts;
  for (int64_t e = 0; e < t.dim(0); ++e) {
    const Tensor expert = t.rows(e, e + 1).view({t.dim(1), t.dim(2)});
    const std::string label = str(name, "[", e, "]");
    if (!gate_up) {
      parts.emplace_back(label, expert);
      continue;
    }
    const int64_t ffn = t.dim(1) / 2;
    parts.emplace_back(label + " gate", expert.rows(0, ffn));
    parts.emplace_back(label + " up", expert.rows(ffn, 2 * ffn));
  }
  return parts;
}

/// A gradient of the fixture under our name. Dense networks are fused here and not there.
Tensor expected_gradient(ParityModel& model, const Fixture& fixture, const std::string& kind,
                         const nn::Parameter& parameter) {
  const std::string& name = parameter.spec.name;
  const std::string fused = "gate_up_proj.weight";
  if (!name.ends_with(fused)) {
    return model.own_part(parameter, fixture.tensor(model.ctx, str(kind, ".", name)));
  }
  const std::string prefix = str(kind, ".", name.substr(0, name.size() - fused.size()));
  const Tensor gate = fixture.tensor(model.ctx, prefix + "gate_proj.weight");
  const Tensor up = fixture.tensor(model.ctx, prefix + "up_proj.weight");
  Tensor both = Tensor::empty(model.ctx, parameter.value.shape(), DType::kF32);
  Tensor first = both.rows(0, gate.dim(0)), second = both.rows(gate.dim(0), both.dim(0));
  copy(gate, first);
  copy(up, second);
  return both;
}

void expect_gradients(ParityModel& model, const Fixture& fixture, const std::string& kind) {
  std::string worst_name;
  double worst = 0.0;
  size_t compared = 0;
  for (const nn::Parameter& parameter : model.store.all()) {
    const std::string& name = parameter.spec.name;
    const auto actual = parts_of(name, parameter.gradient);
    const auto expected = parts_of(name, expected_gradient(model, fixture, kind, parameter));
    for (size_t i = 0; i < actual.size(); ++i) {
      const double error = relative_l2(actual[i].second, expected[i].second);
      EXPECT_LE(error, kGradient) << actual[i].first;
      if (!(error <= worst)) std::tie(worst, worst_name) = std::tie(error, actual[i].first);
      ++compared;
    }
  }
  EXPECT_GE(compared, model.store.all().size());
  EXPECT_TRUE(within(fixture.name, str("worst ", kind, " of ", compared, " (", worst_name, ")"),
                     worst, kGradient));
}

/// The experts of every token as sets: their order within a token has no meaning.
void expect_choices(ParityModel& model, const Tensor& layers_TK, int64_t update) {
  ASSERT_EQ(static_cast<int64_t>(model.choices.size()), layers_TK.dim(0));
  for (int64_t layer = 0; layer < layers_TK.dim(0); ++layer) {
    const Tensor whole =
        layers_TK.rows(layer, layer + 1).view({layers_TK.dim(1), layers_TK.dim(2)});
    const Tensor wanted = model.own_rows(whole);
    const Tensor& chosen = model.choices[static_cast<size_t>(layer)];
    ASSERT_EQ(chosen.shape(), wanted.shape());
    const auto set_of = [](const Tensor& ids, int64_t row) {
      const int32_t* const first = ids.data<int32_t>() + row * ids.dim(1);
      return std::set<int32_t>(first, first + ids.dim(1));
    };
    for (int64_t t = 0; t < wanted.dim(0); ++t) {
      EXPECT_EQ(set_of(chosen, t), set_of(wanted, t))
          << "a flip: update " << update << ", layer " << layer << ", token " << t;
    }
  }
}

class Parity : public testing::TestWithParam<std::string> {
 protected:
  Fixture fixture_{GetParam()};
};

TEST_P(Parity, Logits) {
  ParityModel model(fixture_, fixture_.config, false);
  const Tensor expected = model.own_rows(fixture_.tensor(model.ctx, "logits"));
  EXPECT_TRUE(within(fixture_.name, "logits", relative_l2(model.logits(), expected), kLogits));
}

TEST_P(Parity, LossAndEveryGradient) {
  ParityModel model(fixture_, fixture_.config, false);
  model.compute_gradients();
  EXPECT_TRUE(
      within(fixture_.name, "loss", relative(model.loss, fixture_.expected["loss"]), kLoss));
  expect_gradients(model, fixture_, "gradient");
}

/// Also the loss after the last update; the choices must be the same all along (the fixtures have
/// no close calls).
void expect_training(const Fixture& fixture, bool with_terms) {
  const std::string kind = with_terms ? "terms" : "plain";
  const auto& expected = fixture.expected["training"][kind];
  const std::vector<double> losses = expected["losses"], norms = expected["grad_norms"];
  ASSERT_EQ(losses.size(), 6U);
  ParityModel model(fixture, fixture.config, with_terms);
  const Tensor choices = fixture.tensor(model.ctx, "choices." + kind);
  double worst_loss = 0.0;
  for (size_t update = 0; update < losses.size(); ++update) {
    const auto index = static_cast<int64_t>(update);
    model.compute_gradients();
    const Tensor of_update =
        choices.rows(index, index + 1).view({choices.dim(1), choices.dim(2), choices.dim(3)});
    expect_choices(model, of_update, index);
    worst_loss = std::max(worst_loss, relative(model.loss, losses[update]));
    EXPECT_LE(relative(model.loss, losses[update]), kTrainingLoss) << "update " << update;
    if (update == norms.size()) break;
    if (update == 0) {
      // Later ones belong to weights that AdamW has moved apart where gradients are next to zero.
      const double error = relative(model.grad_norm, norms[update]);
      EXPECT_TRUE(within(fixture.name, kind + " training, first norm", error, kGradient));
    }
    model.update(index + 1);
  }
  EXPECT_TRUE(within(fixture.name, kind + " training, worst loss", worst_loss, kTrainingLoss));
}

TEST_P(Parity, FiveUpdatesOfAdamW) { expect_training(fixture_, false); }

INSTANTIATE_TEST_SUITE_P(, Parity, testing::ValuesIn(case_names()), case_label);

class ParityWithTerms : public Parity {};

TEST_P(ParityWithTerms, TermsOfEveryLayer) {
  ParityModel model(fixture_, fixture_.config, true);
  model.compute_gradients();
  const std::vector<double> aux = fixture_.expected["aux"], z = fixture_.expected["z"];
  ASSERT_EQ(model.aux_losses.size(), aux.size());
  double worst_aux = 0.0, worst_z = 0.0, terms = 0.0;
  const moe::RouterConfig& router = fixture_.config.moe.router;
  const auto top_k = static_cast<double>(fixture_.config.moe.top_k);
  for (size_t layer = 0; layer < aux.size(); ++layer) {
    // transformers does not divide by top_k.
    worst_aux = std::max(worst_aux, relative(top_k * model.aux_losses[layer], aux[layer]));
    worst_z = std::max(worst_z, relative(model.z_losses[layer], z[layer]));
    terms += router.aux_coef * model.aux_losses[layer] + router.z_coef * model.z_losses[layer];
  }
  EXPECT_TRUE(within(fixture_.name, "balance term of a layer", worst_aux, kTerm));
  EXPECT_TRUE(within(fixture_.name, "z term of a layer", worst_z, kTerm));
  EXPECT_TRUE(within(fixture_.name, "loss with terms",
                     relative(model.loss + terms, fixture_.expected["objective"]), kLoss));
}

TEST_P(ParityWithTerms, EveryGradientOfLossAndTerms) {
  ParityModel model(fixture_, fixture_.config, true);
  model.compute_gradients();
  expect_gradients(model, fixture_, "gradient_with_terms");
}

TEST_P(ParityWithTerms, FiveUpdatesOfAdamW) { expect_training(fixture_, true); }

INSTANTIATE_TEST_SUITE_P(, ParityWithTerms, testing::ValuesIn(case_names_with_terms()), case_label);

/// A model that is wrong in one thing must not pass.
struct Fault {
  const char* label;
  const char* fixture;
  void (*make)(config::Config& config);
};
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.label; }

class WrongModel : public testing::TestWithParam<Fault> {};

TEST_P(WrongModel, IsSeenInTheLogits) {
  const Fixture fixture(GetParam().fixture);
  config::Config config = fixture.config;
  GetParam().make(config);
  ParityModel model(fixture, config, false);
  const Tensor expected = model.own_rows(fixture.tensor(model.ctx, "logits"));
  constexpr double kSeen = 5.0;  // times the tolerance: a fault is no matter of luck
  EXPECT_GT(relative_l2(model.logits(), expected), kSeen * kLogits);
}

INSTANTIATE_TEST_SUITE_P(
    , WrongModel,
    testing::Values(
        Fault{"epsilon_of_olmoe", "olmoe", [](config::Config& c) { c.model.norm_eps = 1e-6; }},
        Fault{"epsilon_of_qwen3", "qwen3_moe_eps",
              [](config::Config& c) { c.model.norm_eps = 1e-6; }},
        Fault{"epsilon_of_mixtral", "mixtral", [](config::Config& c) { c.model.norm_eps = 1e-6; }},
        Fault{"theta", "qwen3_moe", [](config::Config& c) { c.model.rope_theta = 1e4; }},
        Fault{"weights_not_normalized", "qwen3_moe",
              [](config::Config& c) { c.moe.router.normalize_topk = false; }},
        Fault{"weights_normalized", "olmoe",
              [](config::Config& c) { c.moe.router.normalize_topk = true; }},
        Fault{"softmax_after_the_choice", "olmoe",
              [](config::Config& c) { c.moe.router.softmax_before_topk = false; }},
        Fault{"one_expert_fewer", "mixtral_mqa", [](config::Config& c) { c.moe.top_k = 2; }}),
    [](const auto& test) { return std::string(test.param.label); });

TEST(Fixtures, CoverTheFamilies) {
  const std::vector<std::string> names = case_names();
  EXPECT_EQ(names.size(), 9U);
  EXPECT_EQ(case_names_with_terms(), (std::vector<std::string>{"mixtral", "olmoe", "qwen3_moe"}));
}

}  // namespace
}  // namespace spillway::parity
