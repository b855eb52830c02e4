// Runs of optimizer state in files: whatever they are cut into, all of a model's elements are there
// once, or the error names parameter and range.

#include "optimizer_state.h"

#include <gtest/gtest.h>

#include "support/checkpoint_fixture.h"
#include "support/temp_files.h"
#include "support/throws.h"

namespace spillway::checkpoint {
namespace {

using spillway::testing::TempFiles;
using spillway::testing::throws_with;

constexpr int kSalt = 5;
const std::string kNorm = "model.norm.weight/8/0";

class OptimizerState : public ::testing::Test {
 protected:
  OptimizerState() {
    single_.replica.fill(kSalt);
    tensors_ = optimizer_tensors(single_.replica.parts());
  }
  NamedTensor& named(const std::string& name) {
    for (NamedTensor& tensor : tensors_) {
      if (tensor.name == name) return tensor;
    }
    throw Error(name);
  }
  /// The tensors, dealt out to three files.
  Files write() {
    std::vector<std::vector<NamedTensor>> shares(3);
    for (size_t i = 0; i < tensors_.size(); ++i) shares[i % 3].push_back(tensors_[i]);
    Files files;
    for (size_t i = 0; i < shares.size(); ++i) {
      const std::string path = files_.path(str("optimizer", i));
      std::filesystem::remove(path);
      write_safetensors(path, shares[i]);
      files.push_back(std::make_unique<SafetensorsFile>(path));
    }
    return files;
  }
  void read() {
    const Files files = write();
    const OptimizerSource source("the checkpoint", files,
                                 model::parameter_specs(model_.config, DType::kBF16));
    Single target(model_, DType::kBF16);
    target.replica.fill(kSalt);
    for (const optim::StatePiece& piece : target.replica.optimizer.pieces()) {
      for (Tensor t : {piece.m, piece.v, piece.master}) t.zero();
    }
    EXPECT_FALSE(target.replica.holds(kSalt));
    source.fill(target.replica.ctx, target.replica.parts());
    EXPECT_TRUE(target.replica.holds(kSalt));
  }
  void refused(const std::vector<std::string>& parts) {
    EXPECT_TRUE(throws_with<DataError>([&] { read(); }, parts));
  }

  const ModelCase model_ = qwen_case();
  Single single_{model_, DType::kBF16};
  std::vector<NamedTensor> tensors_;
  TempFiles files_;
};

TEST_F(OptimizerState, RunsOfAnyLengthInAnyFile) {
  // Every tensor cut into three runs of different lengths, the middle one perhaps empty.
  std::vector<NamedTensor> runs;
  for (const NamedTensor& tensor : tensors_) {
    const std::string prefix = tensor.name.substr(0, tensor.name.rfind('/') + 1);
    const int64_t n = tensor.values.numel(), a = n / 3, b = n / 3 + n / 5;
    runs.insert(runs.begin(), {str(prefix, b), tensor.values.slice(b, {n - b})});
    runs.push_back({str(prefix, 0), tensor.values.slice(0, {a})});
    if (b > a) runs.push_back({str(prefix, a), tensor.values.slice(a, {b - a})});
  }
  tensors_ = runs;
  read();
}

TEST_F(OptimizerState, NamesAGapAtTheStart) {
  NamedTensor& tensor = named("v/" + kNorm);
  tensor = {"v/model.norm.weight/8/3", tensor.values.slice(3, {5})};
  refused({"the checkpoint", "v of model.norm.weight", "[0, 3) are missing"});
}

TEST_F(OptimizerState, NamesAGapInTheMiddle) {
  const Tensor values = named("m/" + kNorm).values;
  named("m/" + kNorm).values = values.slice(0, {2});
  tensors_.push_back({"m/model.norm.weight/8/6", values.slice(6, {2})});
  refused({"m of model.norm.weight", "[2, 6) are missing"});
}

TEST_F(OptimizerState, NamesAGapAtTheEnd) {
  NamedTensor& tensor = named("master/" + kNorm);
  tensor.values = tensor.values.slice(0, {7});
  refused({"master of model.norm.weight", "[7, 8) are missing"});
}

TEST_F(OptimizerState, NamesAMissingParameter) {
  const std::string name = "model.layers.1.mlp.experts.down_proj";
  std::erase_if(tensors_, [&](const NamedTensor& t) { return t.name.starts_with("m/" + name); });
  refused({"m of " + name, "[0, 192) are missing"});
}

TEST_F(OptimizerState, NamesAnOverlap) {
  const Tensor values = named("m/" + kNorm).values;
  tensors_.push_back({"m/model.norm.weight/8/5", values.slice(5, {2})});
  refused({"m of model.norm.weight", "[5, 7) are given twice"});
}

struct BadTensor {
  std::string name;
  std::string tensor;
  int64_t count;
  std::vector<std::string> wanted;
};
void PrintTo(const BadTensor& c, std::ostream* out) { *out << c.name; }
class BadOptimizerTensor : public OptimizerState,
                           public ::testing::WithParamInterface<BadTensor> {};

TEST_P(BadOptimizerTensor, IsNamed) {
  tensors_.push_back(
      {GetParam().tensor, Tensor::zeros(single_.replica.ctx, {GetParam().count}, DType::kF32)});
  std::vector<std::string> wanted = GetParam().wanted;
  wanted.push_back("\"" + GetParam().tensor + "\"");
  refused(wanted);
}
INSTANTIATE_TEST_SUITE_P(
    Tensors, BadOptimizerTensor,
    ::testing::Values(
        BadTensor{"NoParts", "m", 1, {"FIELD/PARAMETER/SHAPE/BEGIN"}},
        BadTensor{"UnknownField", "w/model.norm.weight/8/0", 8, {"no w of a parameter"}},
        BadTensor{"UnknownParameter", "m/model.norm.bias/8/0", 8, {"model.norm.bias"}},
        BadTensor{"OtherShape", "m/model.norm.weight/9/0", 9, {"shape 9", "the model has 8"}},
        BadTensor{"BeginIsNoNumber", "m/model.norm.weight/8/x", 1, {"from element x"}},
        BadTensor{"BeginWithMore", "m/model.norm.weight/8/0/1", 1, {"from element 0/1"}},
        BadTensor{"BeginNegative", "m/model.norm.weight/8/-1", 1, {"from element -1"}},
        BadTensor{
            "BeginOf64Bits", "m/model.norm.weight/8/9223372036854775807", 1, {"up to element 8"}},
        BadTensor{"EndBeyond", "m/model.norm.weight/8/7", 2, {"up to element 8"}}),
    [](const auto& c) { return c.param.name; });

TEST_F(OptimizerState, RefusesOtherDtypesAndDimensions) {
  Tensor& values = named("m/" + kNorm).values;
  const Tensor good = values;
  values = good.view({2, 4});
  refused({"m/" + kNorm, "[2, 4]", "one dimension"});
  values = Tensor::zeros(single_.replica.ctx, {8}, DType::kBF16);
  refused({"m/" + kNorm, "bf16", "f32"});
}

}  // namespace
}  // namespace spillway::checkpoint
