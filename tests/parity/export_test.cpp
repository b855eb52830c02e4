// Checkpoints of ours beside what transformers itself writes for the same model: tensors, names and
// config. That transformers opens them is checked by hand (fixtures/check_export.py).

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>

#include "parity_model.h"
#include "support/temp_files.h"

namespace spillway::parity {
namespace {

/// A folder that all ranks see, removed by rank 0.
class SharedFolder {
 public:
  explicit SharedFolder(comm::Communicator& world) : world_(world) {
    std::vector<std::byte> path;
    if (world.rank() == 0) {
      files_.emplace();
      const std::string text = files_->folder().string();
      const auto* first = reinterpret_cast<const std::byte*>(text.data());
      path.assign(first, first + text.size());
    }
    world.broadcast_from_root(path);
    path_.assign(reinterpret_cast<const char*>(path.data()), path.size());
  }
  ~SharedFolder() { world_.barrier(); }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  comm::Communicator& world_;
  std::optional<testing::TempFiles> files_;
  std::string path_;
};

class Export : public ::testing::TestWithParam<std::string> {
 protected:
  Fixture fixture_{GetParam()};
  ParityModel model_{fixture_, fixture_.config, false};
  SharedFolder folder_{model_.world()};
  std::string checkpoint_ = model_.save(folder_.path());
};

std::string bytes_of(Context& ctx, const checkpoint::SafetensorsFile& file,
                     const checkpoint::SafetensorsFile::Entry& entry) {
  Tensor values = Tensor::empty(ctx, entry.shape, entry.dtype);
  file.read(ctx, entry, 0, values);
  return {static_cast<const char*>(values.raw_data()), static_cast<size_t>(values.bytes())};
}

TEST_P(Export, HoldsTheTensorsOfTransformersBitForBit) {
  const auto index = read_json(checkpoint_ + "/model.safetensors.index.json");
  const checkpoint::SafetensorsFile theirs(fixture_.folder + "/model.safetensors");
  EXPECT_EQ(index["weight_map"].size(), theirs.entries().size());
  std::set<std::string> shards;
  for (const auto& entry : index["weight_map"]) shards.insert(entry.get<std::string>());
  std::map<std::string, std::string> found;  // a tensor, its shard
  for (const std::string& shard : shards) {
    const checkpoint::SafetensorsFile ours(checkpoint_ + "/" + shard);
    for (const auto& entry : ours.entries()) {
      EXPECT_TRUE(found.emplace(entry.name, shard).second) << entry.name << " is there twice";
      const auto* wanted = theirs.find(entry.name);
      ASSERT_NE(wanted, nullptr) << "transformers has no " << entry.name;
      EXPECT_EQ(entry.shape, wanted->shape) << entry.name;
      EXPECT_EQ(entry.dtype, wanted->dtype) << entry.name;
      EXPECT_EQ(bytes_of(model_.ctx, ours, entry), bytes_of(model_.ctx, theirs, *wanted))
          << entry.name;
    }
  }
  EXPECT_EQ(found.size(), theirs.entries().size());
  EXPECT_EQ(index["weight_map"].get<decltype(found)>(), found);
}

TEST_P(Export, HasTheConfigOfTransformers) {
  // What says nothing about what the model computes, or only about training.
  std::set<std::string> indifferent{"transformers_version", "use_cache",
                                    "router_aux_loss_coef", "router_jitter_noise",
                                    "initializer_range",    "output_router_logits"};
  const auto theirs = read_json(fixture_.folder + "/config.json");
  const auto ours = read_json(checkpoint_ + "/config.json");
  // Of Qwen3-MoE the width of dense layers.
  if (theirs["model_type"] == "qwen3_moe" && theirs["mlp_only_layers"].empty()) {
    indifferent.insert("intermediate_size");
  }
  for (const auto& [key, value] : theirs.items()) {
    if (indifferent.contains(key)) continue;
    // transformers takes either of these names for the other.
    const bool alias = key == "num_local_experts" && !ours.contains(key);
    const std::string name = alias ? "num_experts" : key;
    ASSERT_TRUE(ours.contains(name)) << name;
    EXPECT_EQ(ours[name], value) << name;
  }
  EXPECT_EQ(ours["rope_theta"], theirs["rope_parameters"]["rope_theta"]) << "as version 4 reads it";
}

INSTANTIATE_TEST_SUITE_P(, Export, ::testing::ValuesIn(case_names()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace spillway::parity
