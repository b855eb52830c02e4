#include "spillway/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "support/checkpoint_fixture.h"
#include "support/kernel_test.h"
#include "support/temp_files.h"
#include "support/throws.h"

namespace spillway::checkpoint {
namespace {

using spillway::testing::random_tensor;
using spillway::testing::same_bytes;
using spillway::testing::TempFiles;
using spillway::testing::tensor_of;
using spillway::testing::throws_with;

class Safetensors : public ::testing::Test {
 protected:
  Context ctx;
  TempFiles files;
};

class SafetensorsDtype : public Safetensors, public ::testing::WithParamInterface<DType> {};

TEST_P(SafetensorsDtype, RoundTrip) {
  std::vector<NamedTensor> tensors;
  for (const Shape& shape : std::vector<Shape>{{}, {1}, {3, 5}, {0, 7}, {2, 3, 4}, {1, 2, 3, 2}}) {
    Tensor tensor = Tensor::zeros(ctx, shape, GetParam());
    for (int64_t i = 0; i < tensor.bytes(); ++i) {
      static_cast<uint8_t*>(tensor.raw_data())[i] = static_cast<uint8_t>(mix64(i) >> 7);
    }
    tensors.push_back({str("t", shape.rank()), tensor});
    if (shape.rank() == 2) tensors.back().name += str(".", shape[0]);
  }
  const std::string path = files.path("a.safetensors");
  const FileFacts facts = write_safetensors(path, tensors, {{"format", "pt"}, {"k", "\"quoted\""}});
  EXPECT_EQ(facts.bytes, static_cast<int64_t>(std::filesystem::file_size(path)));
  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata().at("k"), "\"quoted\"");
  ASSERT_EQ(file.entries().size(), tensors.size());
  for (const NamedTensor& tensor : tensors) {
    const SafetensorsFile::Entry* const entry = file.find(tensor.name);
    ASSERT_NE(entry, nullptr) << tensor.name;
    EXPECT_EQ(entry->dtype, GetParam());
    EXPECT_EQ(entry->shape, tensor.values.shape());
    EXPECT_EQ(entry->offset_bytes % dtype_bytes(GetParam()), 0);
    Tensor read = Tensor::zeros(ctx, entry->shape, GetParam());
    file.read(ctx, *entry, 0, read);
    EXPECT_TRUE(same_bytes(read, tensor.values)) << tensor.name;
  }
}
INSTANTIATE_TEST_SUITE_P(Dtypes, SafetensorsDtype,
                         ::testing::Values(DType::kF32, DType::kF64, DType::kBF16, DType::kI32,
                                           DType::kI64),
                         [](const auto& c) { return std::string(dtype_name(c.param)); });

TEST_F(Safetensors, WiderDtypesComeFirstThenNames) {
  write_safetensors(files.path("a"), {{"b", Tensor::zeros(ctx, {3}, DType::kBF16)},
                                      {"z", Tensor::zeros(ctx, {1}, DType::kF32)},
                                      {"c", Tensor::zeros(ctx, {1}, DType::kF32)},
                                      {"y", Tensor::zeros(ctx, {1}, DType::kI64)},
                                      {"x", Tensor::zeros(ctx, {1}, DType::kF64)},
                                      {"a", Tensor::zeros(ctx, {1}, DType::kI32)}});
  std::string order;
  const SafetensorsFile file(files.path("a"));
  for (const auto& entry : file.entries()) order += entry.name;
  EXPECT_EQ(order, "yxczab");
}

// What the reference library (safetensors 0.8, save_file of torch tensors) writes for these.
TEST_F(Safetensors, BytesAreThoseOfTheReferenceLibrary) {
  write_safetensors(files.path("a"),
                    {{"w", tensor_of<float>(ctx, {2}, {1.0f, -2.0f})},
                     {"b", tensor_of<bf16>(ctx, {1, 2}, {bf16(0.5f), bf16(3.0f)})}},
                    {{"format", "pt"}});
  std::string wanted =
      "{\"__metadata__\":{\"format\":\"pt\"},"
      "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
      "\"b\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[8,12]}}";
  while (wanted.size() % 8 != 0) wanted += ' ';
  const uint64_t length = wanted.size();
  std::string prefix(8, '\0');
  std::memcpy(prefix.data(), &length, 8);
  const char data[] = "\x00\x00\x80\x3f\x00\x00\x00\xc0\x00\x3f\x40\x40";
  EXPECT_EQ(read_bytes(files.path("a")), prefix + wanted + std::string(data, 12));
}

TEST_F(Safetensors, RangesAndConversions) {
  const Tensor w = random_tensor(ctx, {70000}, DType::kF32, 3);
  write_safetensors(files.path("a"), {{"w", w}});
  const SafetensorsFile file(files.path("a"));
  // More than one piece of the conversion, from the middle of the tensor.
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    Tensor part = Tensor::zeros(ctx, {69990}, dtype);
    file.read(ctx, file.entries().front(), 7, part);
    for (int64_t i = 0; i < part.numel(); ++i) {
      ASSERT_EQ(spillway::testing::element(part, i),
                spillway::testing::rounded(w.data<float>()[7 + i], dtype))
          << dtype_name(dtype) << " " << i;
    }
    EXPECT_TRUE(throws_with<Error>([&] { file.read(ctx, file.entries().front(), 11, part); },
                                   {"tensor w", "70001"}));
  }
}

TEST_F(Safetensors, ChecksumDependsOnTheBytesAlone) {
  // More than one chunk of the checksum, and tensors that cut its blocks anywhere.
  const Tensor all = random_tensor(ctx, {1'500'001}, DType::kF32, 5);
  const FileFacts whole = write_safetensors(files.path("a"), {{"all", all}});
  EXPECT_EQ(write_safetensors(files.path("b"), {{"all", all}}), whole);
  Tensor changed = all.clone(ctx);
  reinterpret_cast<uint8_t*>(changed.raw_data())[5'000'003] ^= 1;
  const FileFacts other = write_safetensors(files.path("c"), {{"all", changed}});
  EXPECT_EQ(other.bytes, whole.bytes);
  EXPECT_NE(other.checksum, whole.checksum);
}

TEST_F(Safetensors, RefusesToWriteOverAFile) {
  files.write("a", "precious");
  EXPECT_TRUE(
      throws_with<Error>([&] { write_safetensors(files.path("a"), {}); }, {files.path("a")}));
  EXPECT_EQ(read_bytes(files.path("a")), "precious");
}

TEST_F(Safetensors, RefusesTwoTensorsOfOneName) {
  const Tensor t = Tensor::zeros(ctx, {1}, DType::kF32);
  EXPECT_TRUE(throws_with<Error>(
      [&] {
        write_safetensors(files.path("a"), {{"twin", t}, {"twin", t}});
      },
      {"twin"}));
}

TEST_F(Safetensors, AFolderThatIsNotThere) {
  EXPECT_TRUE(throws_with<Error>([&] { write_safetensors(files.path("no/a"), {}); },
                                 {files.path("no/a"), "No such file"}));
  EXPECT_TRUE(
      throws_with<DataError>([&] { SafetensorsFile file(files.path("no")); }, {files.path("no")}));
}

}  // namespace
}  // namespace spillway::checkpoint
