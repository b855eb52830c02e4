// What AdamW keeps: its size, and what a checkpoint writes and restores.

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "small_model.h"
#include "spillway/kernels/elementwise.h"
#include "spillway/optim/adamw.h"

namespace spillway::optim {
namespace {

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() &&
         std::memcmp(a.raw_data(), b.raw_data(), static_cast<size_t>(a.bytes())) == 0;
}

// Elements of the flat layout at ep = 1: sizes 42, 6, 24, 42 (dense) and 240, 120 (experts), each
// rounded up to 16.
constexpr int64_t kFlatElements = (48 + 16 + 32 + 48) + (240 + 128);

class AdamWState : public testing::TestWithParam<DType> {
 protected:
  void train(nn::ParameterStore& store, AdamW& adamw, int64_t first, int64_t last) {
    for (int64_t t = first; t <= last; ++t) {
      fill_gradients(store, 0, [&](int64_t position, int64_t i) {
        return static_cast<float>((position * 31 + i * 7 + t * 13) % 17 - 8);
      });
      adamw.step(ctx_, 0.01, 1.0, t);
    }
  }
  Context ctx_;
  OneRank alone_;
};

TEST_P(AdamWState, BytesAreWhatTheAllocatorCounts) {
  nn::ParameterStore store(ctx_, small_model(GetParam()), kModelSeed, 1, 0);
  ASSERT_EQ(ctx_.allocator()->use(Purpose::kOptimizer).current_bytes, 0);
  const AdamW adamw(ctx_, store, alone_.topology, {}, false);
  const int64_t arrays = GetParam() == DType::kF32 ? 2 : 3;
  EXPECT_EQ(adamw.bytes(), arrays * 4 * kFlatElements);
  EXPECT_EQ(ctx_.allocator()->use(Purpose::kOptimizer).current_bytes, adamw.bytes());
}

TEST_P(AdamWState, MasterStartsAsTheUnroundedValueAndMomentsAtZero) {
  nn::ParameterStore store(ctx_, small_model(GetParam()), kModelSeed, 2, 1);
  const nn::ParameterStore unrounded(ctx_, small_model(DType::kF32), kModelSeed, 2, 1);
  size_t position = 0;
  AdamW adamw(ctx_, store, alone_.topology, {}, false);
  for (nn::Parameter& p : store.all()) {
    const std::string& name = p.spec.name;
    const StatePiece& piece = piece_of(adamw, name);
    EXPECT_TRUE(piece.primary) << name;
    EXPECT_EQ(piece.begin, 0) << name;
    EXPECT_EQ(piece.count, p.value.numel()) << name;
    for (const Tensor* state : {&piece.master, &piece.m, &piece.v}) {
      EXPECT_EQ(state->shape(), Shape({p.value.numel()})) << name;
      EXPECT_EQ(state->dtype(), DType::kF32) << name;
    }
    EXPECT_EQ(piece.master.shares_storage(p.value), GetParam() == DType::kF32) << name;
    const Tensor& start = unrounded.all()[position++].value;
    for (int64_t i = 0; i < p.value.numel(); ++i) {
      ASSERT_EQ(piece.master.data<float>()[i], start.data<float>()[i]) << name << " " << i;
      ASSERT_EQ(piece.m.data<float>()[i], 0.0F) << name << " " << i;
      ASSERT_EQ(piece.v.data<float>()[i], 0.0F) << name << " " << i;
    }
  }
}

TEST_P(AdamWState, MastersOfLoadedWeightsAreTheWeights) {
  nn::ParameterStore store(ctx_, small_model(GetParam()), kModelSeed, 1, 0);
  const nn::ParameterStore other(ctx_, small_model(GetParam()), kModelSeed + 1, 1, 0);
  for (const char* name : {"embed", "up"}) {
    Tensor value = store.at(name).value;
    for (const nn::Parameter& p : other.all()) {
      if (p.spec.name == name) copy(p.value, value);
    }
  }
  AdamW adamw(ctx_, store, alone_.topology, {}, false);
  for (const char* name : {"embed", "up", "head"}) {
    Tensor widened = Tensor::empty(ctx_, store.at(name).value.shape(), DType::kF32);
    kernels::cast(ctx_, store.at(name).value, widened);
    const bool is_value = same_bits(widened, piece_of(adamw, name).master);
    const bool loaded = std::string(name) != "head";
    EXPECT_EQ(is_value, loaded || GetParam() == DType::kF32) << name;
  }
  // Rounding the masters is no change: the values were those of the masters.
  std::vector<Tensor> before;
  for (const nn::Parameter& p : store.all()) before.push_back(p.value.clone(ctx_));
  adamw.refresh_values(ctx_);
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(same_bits(before[i], store.all()[i].value)) << store.all()[i].spec.name;
  }
}

TEST_P(AdamWState, ARestoredOneContinuesBitForBit) {
  nn::ParameterStore straight_store(ctx_, small_model(GetParam()), kModelSeed, 1, 0);
  AdamW straight(ctx_, straight_store, alone_.topology, {}, false);
  train(straight_store, straight, 1, 4);

  nn::ParameterStore store(ctx_, small_model(GetParam()), kModelSeed + 1, 1, 0);
  AdamW restored(ctx_, store, alone_.topology, {}, false);
  for (const nn::Parameter& p : store.all()) {
    const std::string& name = p.spec.name;
    const StatePiece& from = piece_of(straight, name);
    StatePiece to = piece_of(restored, name);
    copy(from.master, to.master);
    copy(from.m, to.m);
    copy(from.v, to.v);
  }
  restored.refresh_values(ctx_);
  for (const nn::Parameter& p : store.all()) {
    EXPECT_TRUE(same_bits(p.value, straight_store.at(p.spec.name).value)) << p.spec.name;
  }
  train(straight_store, straight, 5, 8);
  train(store, restored, 5, 8);
  for (const nn::Parameter& p : store.all()) {
    const std::string& name = p.spec.name;
    EXPECT_TRUE(same_bits(p.value, straight_store.at(name).value)) << name;
    EXPECT_TRUE(same_bits(piece_of(restored, name).m, piece_of(straight, name).m)) << name;
    EXPECT_TRUE(same_bits(piece_of(restored, name).v, piece_of(straight, name).v)) << name;
  }
}

TEST_P(AdamWState, StepsCountFromOne) {
  nn::ParameterStore store(ctx_, small_model(GetParam()), kModelSeed, 1, 0);
  AdamW adamw(ctx_, store, alone_.topology, {}, false);
  EXPECT_THROW(adamw.step(ctx_, 0.1, 1.0, 0), Error);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, AdamWState, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST(AdamWStateOf, AnF64ModelIsRefused) {
  Context ctx;
  OneRank alone;
  nn::ParameterStore store(ctx, small_model(DType::kF64), kModelSeed, 1, 0);
  try {
    const AdamW adamw(ctx, store, alone.topology, {}, false);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("f64"), std::string::npos) << error.what();
  }
}

TEST(AdamWStateOf, AModelWithoutExpertsOrWithoutAnything) {
  Context ctx;
  OneRank alone;
  nn::ParameterStore nothing(ctx, {}, kModelSeed, 1, 0);
  AdamW of_nothing(ctx, nothing, alone.topology, {}, false);
  of_nothing.step(ctx, 0.1, 1.0, 1);
  EXPECT_EQ(of_nothing.bytes(), 0);

  nn::ParameterStore dense(ctx, {spec_of("w", {2, 8}, DType::kF32)}, kModelSeed, 1, 0);
  AdamW of_dense(ctx, dense, alone.topology, {}, false);
  of_dense.step(ctx, 0.1, 1.0, 1);
  EXPECT_EQ(of_dense.bytes(), 2 * 4 * 16);
}

}  // namespace
}  // namespace spillway::optim
