// A whole checkpoint, of a model that is not this one.

#include <gtest/gtest.h>

#include "support/checkpoint_fixture.h"
#include "support/temp_files.h"
#include "support/throws.h"

namespace spillway::checkpoint {
namespace {

struct OtherModel {
  std::string name;
  std::function<void(ModelCase&)> change;
  std::vector<std::string> wanted;
  DType dtype = DType::kBF16;
};
void PrintTo(const OtherModel& c, std::ostream* out) { *out << c.name; }
class CheckpointOfAnotherModel : public ::testing::TestWithParam<OtherModel> {};

TEST_P(CheckpointOfAnotherModel, IsRefusedByItsFirstDifference) {
  const testing::TempFiles files;
  Single single(deepseek_case(), DType::kBF16);
  const std::string path =
      save(single.replica.ctx, files.folder().string(), single.replica.parts(), state_at(1), 1)
          .path;
  ModelCase model = deepseek_case();
  GetParam().change(model);
  Single other(model, GetParam().dtype);
  other.replica.fill(8);
  EXPECT_TRUE(testing::throws_with<DataError>(
      [&] { load(other.replica.ctx, path, other.replica.parts()); }, GetParam().wanted));
  EXPECT_TRUE(other.replica.holds(8));
}
INSTANTIATE_TEST_SUITE_P(
    Models, CheckpointOfAnotherModel,
    ::testing::Values(OtherModel{"Vocabulary",
                                 [](ModelCase& m) { m.config.model.vocab_size = 12; },
                                 {"[11, 8]", "the model has [12, 8]"}},
                      OtherModel{"FewerLayers",
                                 [](ModelCase& m) { m.config.model.layers = 1; },
                                 {"model.layers.1.", "no such tensor"}},
                      OtherModel{"MoreLayers",
                                 [](ModelCase& m) { m.config.model.layers = 3; },
                                 {"model.layers.2.input_layernorm.weight", "missing"}},
                      OtherModel{"FewerExperts",
                                 [](ModelCase& m) { m.config.moe.experts = 2; },
                                 {"model.layers.1.mlp.", "4"}},
                      OtherModel{"WiderExperts",
                                 [](ModelCase& m) { m.config.moe.ffn = 7; },
                                 {"model.layers.1.mlp.", "7"}},
                      OtherModel{
                          "NormsOfQueries",
                          [](ModelCase& m) { m.config.model.qk_norm = model::QkNorm::kHead; },
                          {"self_attn.q_norm.weight", "missing"}},
                      OtherModel{"TiedEmbeddings",
                                 [](ModelCase& m) { m.config.model.tie_embeddings = true; },
                                 {"lm_head.weight", "no such tensor"}},
                      OtherModel{"NoBias",
                                 [](ModelCase& m) { m.bias = false; },
                                 {"e_score_correction_bias", "no such tensor"}},
                      OtherModel{"OtherDtype", [](ModelCase&) {}, {"bf16", "f32"}, DType::kF32}),
    [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace spillway::checkpoint
