// Files that no reader may take: each is refused with a text that names file, tensor and defect.

#include <gtest/gtest.h>

#include <cstring>

#include "spillway/checkpoint/safetensors.h"
#include "support/temp_files.h"
#include "support/throws.h"

namespace spillway::checkpoint {
namespace {

using spillway::testing::TempFiles;
using spillway::testing::throws_with;

struct Damage {
  std::string name;
  std::string header;
  int64_t data_bytes = 0;
  std::vector<std::string> wanted;      // parts of the text
  std::optional<uint64_t> length = {};  // as the file says it, when that is wrong
};
void PrintTo(const Damage& damage, std::ostream* out) { *out << damage.name; }

std::string file_text(const Damage& damage) {
  const uint64_t length = damage.length.value_or(damage.header.size());
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text + damage.header + std::string(static_cast<size_t>(damage.data_bytes), 'd');
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"w\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}}";
}

class DamagedSafetensors : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedSafetensors, IsRefused) {
  const TempFiles files;
  const std::string path = files.write("damaged.safetensors", file_text(GetParam()));
  std::vector<std::string> parts = GetParam().wanted;
  parts.push_back(path);
  EXPECT_TRUE(throws_with<DataError>([&] { SafetensorsFile file(path); }, parts));
}

const std::string kTwo =  // "v" after "w", 8 bytes each
    "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
    "\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":";

const std::vector<Damage> kDamages = {
    {"LengthBeyondTheFile", "{}", 0, {"3 bytes by its length", "2 after"}, 3},
    {"LengthOf64Bits", "{}", 0, {"18446744073709551615"}, 0xffffffffffffffffULL},
    {"LengthZero", "{}", 0, {"begin with {"}, 0},
    {"LengthCutsTheHeader", tensor("\"F32\"", "[2]", "[0,8]"), 8, {"not JSON"}, 20},
    {"NotAnObject", "[1]", 0, {"begin with {"}},
    {"BlankFirst", " {}", 0, {"begin with {"}},
    {"NotJson", "{\"w\"}", 0, {"not JSON at byte"}},
    {"TextAfterTheObject", "{}x", 0, {"not JSON"}},
    {"NotUtf8", "{\"\xff\":1}", 0, {"not JSON"}},
    {"TensorTwice",
     kTwo + "[8,16]},\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
     16,
     {"\"w\"", "twice"}},
    {"KeyTwice",
     "{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
     8,
     {"\"dtype\"", "twice"}},
    {"TensorIsANumber", "{\"w\":7}", 0, {"\"w\"", "7", "an object"}},
    {"NoDtype", "{\"w\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, {"\"w\"", "\"dtype\""}},
    {"NoShape", "{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, {"\"w\"", "\"shape\""}},
    {"NoOffsets", "{\"w\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, {"\"w\"", "\"data_offsets\""}},
    {"UnknownKey",
     "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"strides\":[1]}}",
     8,
     {"\"w\"", "\"strides\""}},
    {"UnknownDtype", tensor("\"F33\"", "[2]", "[0,8]"), 8, {"\"w\"", "F33", "F32, F64, BF16"}},
    {"HalfPrecision", tensor("\"F16\"", "[2]", "[0,4]"), 4, {"\"w\"", "F16", "half precision"}},
    {"DtypeIsANumber", tensor("3", "[2]", "[0,8]"), 8, {"\"w\"", "dtype is 3"}},
    {"ShapeIsAText", tensor("\"F32\"", "\"2\"", "[0,8]"), 8, {"\"w\"", "an array"}},
    {"NegativeSize", tensor("\"F32\"", "[-2]", "[0,8]"), 8, {"\"w\"", "-2"}},
    {"FractionalSize", tensor("\"F32\"", "[2.0]", "[0,8]"), 8, {"\"w\"", "2.0"}},
    {"FiveDimensions", tensor("\"F32\"", "[1,1,1,1,2]", "[0,8]"), 8, {"\"w\"", "5 dimensions"}},
    {"SizeBeyond63Bits", tensor("\"F32\"", "[18446744073709551615]", "[0,8]"), 8, {"\"w\""}},
    {"ProductOverflows",
     tensor("\"F32\"", "[4294967296,4294967296]", "[0,0]"),
     0,
     {"\"w\"", "64 bits"}},
    {"ProductOverflowsBeforeAZero",
     tensor("\"F32\"", "[4294967296,4294967296,0]", "[0,0]"),
     0,
     {"\"w\"", "64 bits"}},
    {"OffsetsOfOne", tensor("\"F32\"", "[2]", "[8]"), 8, {"\"w\"", "[begin, end]"}},
    {"OffsetsFall", tensor("\"F32\"", "[2]", "[8,0]"), 8, {"\"w\"", "[8, 0]"}},
    {"OffsetsNegative", tensor("\"F32\"", "[2]", "[-8,0]"), 8, {"\"w\"", "-8"}},
    {"OffsetsBeyondTheFile", tensor("\"F32\"", "[4]", "[0,16]"), 8, {"\"w\"", "16", "8 bytes"}},
    {"FileCutShort", tensor("\"F32\"", "[2]", "[0,8]"), 7, {"\"w\"", "7 bytes of data"}},
    {"BytesTooMany", tensor("\"F32\"", "[2]", "[0,8]"), 9, {"9 bytes of data", "end at 8"}},
    {"ShapeTooSmall", tensor("\"F32\"", "[1]", "[0,8]"), 8, {"\"w\"", "8 bytes", "needs 4"}},
    {"ShapeTooLarge", tensor("\"BF16\"", "[5]", "[0,8]"), 8, {"\"w\"", "8 bytes", "needs 10"}},
    {"GapAtTheStart", tensor("\"F32\"", "[1]", "[4,8]"), 8, {"\"w\"", "byte 4", "expected: 0"}},
    {"GapBetween", kTwo + "[12,20]}}", 20, {"\"v\"", "byte 12", "expected: 8"}},
    {"Overlap", kTwo + "[4,12]}}", 12, {"\"v\"", "byte 4", "expected: 8"}},
    {"SamePlaceTwice", kTwo + "[0,8]}}", 8, {"byte 0", "expected: 8"}},
    {"MetadataIsAList", "{\"__metadata__\":[]}", 0, {"__metadata__", "an object"}},
    {"MetadataOfANumber", "{\"__metadata__\":{\"a\":1}}", 0, {"__metadata__", "\"a\"", "a text"}},
};

INSTANTIATE_TEST_SUITE_P(Damages, DamagedSafetensors, ::testing::ValuesIn(kDamages),
                         [](const auto& c) { return c.param.name; });

TEST(DamagedSafetensors, ShorterThanALength) {
  const TempFiles files;
  for (int size = 1; size < 8; ++size) {
    const std::string path = files.write("short", std::string(static_cast<size_t>(size), '\0'));
    EXPECT_TRUE(throws_with<DataError>([&] { SafetensorsFile file(path); },
                                       {path, str("has ", size, " bytes")}));
  }
  const std::string empty = files.write("empty", "");
  EXPECT_TRUE(throws_with<DataError>([&] { SafetensorsFile file(empty); }, {empty, "empty"}));
}

TEST(DamagedSafetensors, HeaderLongerThanAnyReaderTakes) {
  const TempFiles files;
  const std::string path = files.write_sparse("long", 200'000'000);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const uint64_t length = 100'000'001;
  file.write(reinterpret_cast<const char*>(&length), 8);
  file.close();
  EXPECT_TRUE(
      throws_with<DataError>([&] { SafetensorsFile read(path); }, {path, "at most 100000000"}));
}

TEST(DamagedSafetensors, UndamagedOnesAreTaken) {
  const TempFiles files;
  const auto entries = [&](const std::string& header, int64_t bytes) {
    return SafetensorsFile(files.write("good", file_text({"", header, bytes, {}})))
        .entries()
        .size();
  };
  EXPECT_EQ(entries("{}", 0), 0u);
  EXPECT_EQ(entries("{}      ", 0), 0u);
  EXPECT_EQ(entries(kTwo + "[8,16]}}", 16), 2u);
  EXPECT_EQ(entries(tensor("\"F32\"", "[0,5]", "[0,0]"), 0), 1u);
  EXPECT_EQ(entries(tensor("\"F32\"", "[]", "[0,4]"), 4), 1u);
}

}  // namespace
}  // namespace spillway::checkpoint
