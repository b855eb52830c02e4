#include "spillway/checkpoint/load_weights.h"

#include <gtest/gtest.h>

#include "spillway/checkpoint/tensor_names.h"
#include "support/checkpoint_fixture.h"
#include "support/temp_files.h"
#include "support/throws.h"

namespace spillway::checkpoint {
namespace {

using spillway::testing::TempFiles;
using spillway::testing::throws_with;

constexpr int kSalt = 7;

/// The whole model's tensors under the names of a family, from a replica that holds all of it.
std::vector<NamedTensor> tensors_of(Replica& replica, const model::DecoderConfig& config,
                                    Family family) {
  std::vector<NamedTensor> tensors;
  for (const FileTensor& t : file_tensors(config, family)) {
    tensors.push_back({t.name, replica.store.at(t.parameter).value.slice(t.begin, t.shape)});
  }
  for (const NamedTensor& buffer : replica.buffers) tensors.push_back(buffer);
  return tensors;
}

/// [E,a,b] -> [E,b,a]
Tensor swapped(Context& ctx, const Tensor& t) {
  Tensor out = Tensor::empty(ctx, {t.dim(0), t.dim(2), t.dim(1)}, t.dtype());
  for (int64_t e = 0; e < t.dim(0); ++e) {
    for (int64_t a = 0; a < t.dim(1); ++a) {
      for (int64_t b = 0; b < t.dim(2); ++b) {
        out.data<float>()[(e * t.dim(2) + b) * t.dim(1) + a] =
            t.data<float>()[(e * t.dim(1) + a) * t.dim(2) + b];
      }
    }
  }
  return out;
}

class LoadWeights : public ::testing::Test {
 protected:
  /// One file of all tensors, after `change`; loaded into a spoiled replica.
  template <typename F>
  void load_changed(const ModelCase& model, F&& change) {
    Single source(model), target(model);
    source.replica.fill(kSalt);
    target.replica.spoil();
    std::vector<NamedTensor> tensors =
        tensors_of(source.replica, model.config, family_of(model.config));
    change(source.replica, tensors);
    path = files.path("weights.safetensors");
    std::filesystem::remove(path);
    write_safetensors(path, tensors);
    load_weights(target.replica.ctx, path, model.config, {}, target.replica.store,
                 target.replica.buffers);
    EXPECT_TRUE(target.replica.holds(kSalt, false));
  }
  template <typename F>
  void refused(const ModelCase& model, const std::vector<std::string>& parts, F&& change) {
    EXPECT_TRUE(throws_with<DataError>([&] { load_changed(model, change); }, parts));
  }

  TempFiles files;
  std::string path;
};

NamedTensor& named(std::vector<NamedTensor>& tensors, const std::string& name) {
  for (NamedTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  throw Error(name);
}

class LoadWeightsFamily : public LoadWeights, public ::testing::WithParamInterface<ModelCase> {};

TEST_P(LoadWeightsFamily, OwnNames) {
  load_changed(GetParam(), [](Replica&, std::vector<NamedTensor>&) {});
}

TEST_P(LoadWeightsFamily, FusedNames) {
  load_changed(GetParam(), [&](Replica& replica, std::vector<NamedTensor>& tensors) {
    tensors = replica.buffers;
    for (const nn::Parameter& p : replica.store.all()) tensors.push_back({p.spec.name, p.value});
  });
}

TEST_P(LoadWeightsFamily, FusedAndTransposedExperts) {
  load_changed(GetParam(), [&](Replica& replica, std::vector<NamedTensor>& tensors) {
    tensors = replica.buffers;
    for (const nn::Parameter& p : replica.store.all()) {
      const bool expert = p.spec.sync == nn::SyncGroup::kExpert;
      tensors.push_back({p.spec.name, expert ? swapped(replica.ctx, p.value) : p.value});
    }
  });
}

TEST_P(LoadWeightsFamily, NamesOfMixtral) {
  load_changed(GetParam(), [&](Replica& replica, std::vector<NamedTensor>& tensors) {
    tensors = tensors_of(replica, GetParam().config, Family::kMixtral);
  });
}

TEST_P(LoadWeightsFamily, EverySliceOfTheExperts) {
  const ModelCase& model = GetParam();
  Single source(model);
  source.replica.fill(kSalt);
  path = files.path("weights.safetensors");
  write_safetensors(path, tensors_of(source.replica, model.config, family_of(model.config)));
  Context ctx;
  for (const int64_t ep : {1, 2, 4}) {
    for (int64_t rank = 0; rank < ep; ++rank) {
      nn::ParameterStore store(ctx, model::parameter_specs(model.config, DType::kF32), 2, ep, rank);
      load_weights(ctx, path, model.config, {.ep = ep, .ep_rank = rank}, store,
                   source.replica.buffers);
      for (const nn::Parameter& p : store.all()) {
        const int64_t first = p.spec.sync == nn::SyncGroup::kExpert ? rank * p.value.numel() : 0;
        for (int64_t i = 0; i < p.value.numel(); ++i) {
          ASSERT_EQ(p.value.data<float>()[i], element_at(p.spec.name, "value", first + i, kSalt))
              << p.spec.name << " ep " << ep << " rank " << rank << " element " << i;
        }
      }
    }
  }
}

TEST_P(LoadWeightsFamily, Bf16IntoF32AndBack) {
  const ModelCase& model = GetParam();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Single source(model, dtype), target(model, dtype == DType::kF32 ? DType::kBF16 : DType::kF32);
    source.replica.fill(kSalt);
    path = files.path(str("weights.", dtype_name(dtype)));
    write_safetensors(path, tensors_of(source.replica, model.config, family_of(model.config)));
    load_weights(target.replica.ctx, path, model.config, {}, target.replica.store,
                 target.replica.buffers);
    for (const nn::Parameter& p : target.replica.store.all()) {
      for (int64_t i = 0; i < p.value.numel(); ++i) {
        const bf16 wanted(element_at(p.spec.name, "value", i, kSalt));
        const float got = dtype == DType::kF32 ? static_cast<float>(p.value.data<bf16>()[i])
                                               : p.value.data<float>()[i];
        ASSERT_EQ(got, static_cast<float>(wanted)) << p.spec.name << " " << i;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Families, LoadWeightsFamily, ::testing::ValuesIn(model_cases()),
                         [](const auto& c) { return c.param.name; });

TEST_F(LoadWeights, NamesAMissingTensor) {
  for (const char* const name :
       {"lm_head.weight", "model.layers.1.mlp.experts.2.up_proj.weight",
        "model.layers.0.self_attn.k_norm.weight", "model.layers.0.mlp.gate.weight"}) {
    refused(qwen_case(), {path, name, "missing"}, [&](Replica&, auto& tensors) {
      std::erase_if(tensors, [&](const NamedTensor& t) { return t.name == name; });
    });
  }
}

TEST_F(LoadWeights, NamesAMissingBuffer) {
  const std::string name = "model.layers.1.mlp.gate.e_score_correction_bias";
  refused(deepseek_case(), {name, "missing"}, [&](Replica&, auto& tensors) {
    std::erase_if(tensors, [&](const NamedTensor& t) { return t.name == name; });
  });
}

TEST_F(LoadWeights, NamesATensorOfNoParameter) {
  for (const char* const name : {"model.layers.2.input_layernorm.weight", "model.norm.bias",
                                 "model.layers.0.mlp.experts.4.up_proj.weight"}) {
    refused(qwen_case(), {name, "no such tensor"}, [&](Replica& replica, auto& tensors) {
      tensors.push_back({name, Tensor::zeros(replica.ctx, {8}, DType::kF32)});
    });
  }
}

TEST_F(LoadWeights, ABiasThatTheModelDoesNotUse) {
  const std::string name = "model.layers.0.mlp.gate.e_score_correction_bias";
  refused(qwen_case(), {name, "no such tensor"}, [&](Replica& replica, auto& tensors) {
    tensors.push_back({name, Tensor::zeros(replica.ctx, {4}, DType::kF32)});
  });
}

TEST_F(LoadWeights, NamesAnotherShape) {
  const std::string name = "model.layers.0.mlp.experts.1.down_proj.weight";
  refused(qwen_case(), {name, "[6, 8]", "[8, 6]"}, [&](Replica&, auto& tensors) {
    named(tensors, name).values = named(tensors, name).values.view({6, 8});
  });
  refused(qwen_case(), {"model.norm.weight", "[2, 4]", "[8]"}, [&](Replica&, auto& tensors) {
    NamedTensor& tensor = named(tensors, "model.norm.weight");
    tensor.values = tensor.values.view({2, 4});
  });
}

TEST_F(LoadWeights, NamesATensorGivenUnderTwoNames) {
  refused(qwen_case(),
          {"mlp.experts.0.gate_proj.weight", "mlp.experts.gate_up_proj", "gives already"},
          [&](Replica& replica, auto& tensors) {
            const std::string name = "model.layers.0.mlp.experts.gate_up_proj";
            tensors.push_back({name, replica.store.at(name).value});
          });
}

TEST_F(LoadWeights, RefusesFusedExpertsThatCouldBeEither) {
  ModelCase model = qwen_case();
  model.config.moe.ffn = 4;  // 2I = H
  refused(model, {"mlp.experts.gate_up_proj", "[4, 8, 8]", "one expert a tensor"},
          [&](Replica& replica, auto& tensors) {
            tensors.clear();
            for (const nn::Parameter& p : replica.store.all()) {
              tensors.push_back({p.spec.name, p.value});
            }
          });
  load_changed(model, [](Replica&, auto&) {});
}

TEST_F(LoadWeights, RefusesIntegers) {
  refused(qwen_case(), {"model.norm.weight", "i32"}, [&](Replica& replica, auto& tensors) {
    named(tensors, "model.norm.weight").values = Tensor::zeros(replica.ctx, {8}, DType::kI32);
  });
}

TEST_F(LoadWeights, PassesOverWhatIsNoWeightOfOurs) {
  load_changed(qwen_case(), [&](Replica& replica, auto& tensors) {
    const Tensor t = Tensor::zeros(replica.ctx, {3}, DType::kF32);
    tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", t});
    tensors.push_back({"model.layers.2.eh_proj.weight", t});
    tensors.push_back({"model.layers.2.mlp.gate.weight", t});
  });
}

class LoadWeightsFolder : public LoadWeights {
 protected:
  /// Two files and an index in a folder of their own.
  void SetUp() override {
    source.replica.fill(kSalt);
    std::vector<NamedTensor> tensors =
        tensors_of(source.replica, model.config, family_of(model.config));
    std::vector<NamedTensor> second(tensors.begin() + 5, tensors.end());
    tensors.resize(5);
    std::string map;
    for (const NamedTensor& t : tensors) map += "\"" + t.name + "\":\"a.safetensors\",";
    for (const NamedTensor& t : second) map += "\"" + t.name + "\":\"b.safetensors\",";
    map.pop_back();
    write_safetensors(files.path("a.safetensors"), tensors);
    write_safetensors(files.path("b.safetensors"), second);
    index = "{\"metadata\":{},\"weight_map\":{" + map + "}}";
    files.write("model.safetensors.index.json", index);
  }
  void load() {
    Single target(model);
    target.replica.spoil();
    load_weights(target.replica.ctx, files.folder().string(), model.config, {},
                 target.replica.store);
    EXPECT_TRUE(target.replica.holds(kSalt, false));
  }
  void refused_index(const std::string& text, const std::vector<std::string>& parts) {
    files.write("model.safetensors.index.json", text);
    EXPECT_TRUE(throws_with<DataError>([&] { load(); }, parts));
  }

  const ModelCase model = qwen_case();
  Single source{model};
  std::string index;
};

TEST_F(LoadWeightsFolder, FollowsTheIndex) { load(); }

TEST_F(LoadWeightsFolder, ASingleFileNeedsNone) {
  std::filesystem::remove(files.path("model.safetensors.index.json"));
  EXPECT_TRUE(throws_with<DataError>([&] { load(); }, {"neither model.safetensors nor"}));
  write_safetensors(files.path("model.safetensors"),
                    tensors_of(source.replica, model.config, family_of(model.config)));
  load();
}

TEST_F(LoadWeightsFolder, AMissingFile) {
  std::filesystem::remove(files.path("b.safetensors"));
  EXPECT_TRUE(throws_with<DataError>([&] { load(); }, {files.path("b.safetensors")}));
}

TEST_F(LoadWeightsFolder, DefectsOfTheIndex) {
  refused_index("{}", {"index.json", "weight_map"});
  refused_index("{\"weight_map\":[]}", {"index.json", "weight_map"});
  refused_index("{\"weight_map\":{}}", {"index.json", "no tensor"});
  refused_index("{\"weight_map\":", {"index.json", "not JSON"});
  refused_index("{\"weight_map\":{\"lm_head.weight\":7}}", {"lm_head.weight", "7"});
  refused_index("{\"weight_map\":{\"lm_head.weight\":\"../a\"}}", {"lm_head.weight", "../a"});
  std::string other = index;
  other.replace(other.find("lm_head"), 7, "lm_tail");
  refused_index(other, {"b.safetensors", "lm_tail.weight", "has no tensor"});
  std::string shorter = index;
  const size_t end = shorter.find(",\"lm_head.weight\"");
  shorter.replace(end, shorter.find("}}", end) - end, "");
  refused_index(shorter, {"b.safetensors", "lm_head.weight", "not in it"});
}

}  // namespace
}  // namespace spillway::checkpoint
