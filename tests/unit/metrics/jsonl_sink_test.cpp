#include "spillway/metrics/jsonl_sink.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "jsonl_fixture.h"
#include "spillway/core/error.h"
#include "spillway/core/rng.h"

namespace spillway::metrics {
namespace {

TEST_F(Jsonl, TextThatIsNoUtf8StillGivesAValidLine) {
  WarningRecord record;
  record.message = "byte \xff here";
  EXPECT_EQ(json_of(record)["message"], "byte \xef\xbf\xbd here");  // U+FFFD
}

TEST_F(Jsonl, TypeIsTheFirstField) {
  EXPECT_EQ(line_of(StepRecord{}).rfind(R"({"type":"step",)", 0), 0U);
  EXPECT_EQ(line_of(run_record()).rfind(R"({"type":"run",)", 0), 0U);
}

struct Unusual {
  const char* name;
  double value;
};
class JsonlNonFinite : public Jsonl, public ::testing::WithParamInterface<Unusual> {};
TEST_P(JsonlNonFinite, IsNull) {
  StepRecord record = step_record();
  record.loss = record.grad_norm = GetParam().value;
  record.mfu = GetParam().value;
  const Json json = json_of(record);
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["grad_norm"].is_null());
  EXPECT_TRUE(json["mfu"].is_null());
  EXPECT_EQ(json["lr"], record.lr);
}
INSTANTIATE_TEST_SUITE_P(Values, JsonlNonFinite,
                         ::testing::Values(Unusual{"nan", std::numeric_limits<double>::quiet_NaN()},
                                           Unusual{"inf", std::numeric_limits<double>::infinity()},
                                           Unusual{"minus_inf",
                                                   -std::numeric_limits<double>::infinity()}),
                         [](const auto& p) { return p.param.name; });

class JsonlDouble : public Jsonl, public ::testing::WithParamInterface<double> {};
TEST_P(JsonlDouble, ReadsBackEqual) {
  StepRecord record = step_record();
  record.loss = GetParam();
  EXPECT_EQ(json_of(record)["loss"].get<double>(), GetParam());
}
INSTANTIATE_TEST_SUITE_P(Values, JsonlDouble,
                         ::testing::Values(0.0, 1.0, 0.1, 1.0 / 3, 1e-300, 1e300, 123456789.123,
                                           std::numeric_limits<double>::denorm_min(),
                                           std::numeric_limits<double>::max()));

TEST_F(Jsonl, DoublesAreWrittenShort) {
  StepRecord record = step_record();
  record.loss = 0.1;
  record.lr = 0.0003;
  record.step_ms = 2;
  const std::string line = line_of(record);
  EXPECT_NE(line.find(R"("loss":0.1,)"), std::string::npos) << line;
  EXPECT_NE(line.find(R"("lr":3e-04,)"), std::string::npos) << line;
  EXPECT_NE(line.find(R"("step_ms":2.0,)"), std::string::npos) << line;
}

TEST_F(Jsonl, FloatsAreWrittenWithTheirOwnShortestDigits) {
  StepRecord record = step_record();
  record.loss = shortest(5.4321f);
  record.lr = shortest(0.1f);
  const std::string line = line_of(record);
  EXPECT_NE(line.find(R"("loss":5.4321,)"), std::string::npos) << line;
  EXPECT_NE(line.find(R"("lr":0.1,)"), std::string::npos) << line;
}

/// The text of the value of a field.
std::string field_text(const std::string& line, const std::string& key) {
  const size_t begin = line.find("\"" + key + "\":") + key.size() + 3;
  return line.substr(begin, line.find(',', begin) - begin);
}

TEST_F(Jsonl, NoShorterFormReadsBackEqual) {
  Rng rng(3);
  JsonlSink sink(path());
  std::vector<double> values;
  for (int i = 0; i < 5000; ++i) {
    // Few digits for one half: those are the ones that a careless writer makes long.
    const double value = rng.normal() * std::exp(3 * rng.normal());
    values.push_back(i % 2 == 0 ? value : shortest(static_cast<float>(value)));
    StepRecord record = step_record();
    record.loss = values.back();
    sink.write(record);
  }
  sink.flush();
  const auto all = lines();
  ASSERT_EQ(all.size(), values.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string text = field_text(all[i], "loss");
    ASSERT_EQ(std::strtod(text.c_str(), nullptr), values[i]) << text;
    std::array<char, 64> shorter;
    for (int digits = 1; digits <= 17; ++digits) {
      std::snprintf(shorter.data(), shorter.size(), "%.*g", digits, values[i]);
      if (std::strtod(shorter.data(), nullptr) == values[i]) break;
    }
    ASSERT_LE(text.size(), std::string(shorter.data()).size() + 2) << text;  // 2: ".0"
  }
}

TEST_F(Jsonl, FloatsInsideTheConfigAreShortToo) {
  RunRecord record = run_record();
  record.config_json = R"({"a":[5.0820303,{"b":0.1}],"c":[],"d":{},"e":null,"f":2.0,"g":1})";
  EXPECT_NE(line_of(record).find(record.config_json), std::string::npos) << line_of(record);
}

TEST_F(Jsonl, EveryLineIsValidAndInOrder) {
  JsonlSink sink(path());
  sink.write(run_record());
  for (int64_t step = 1; step <= 50; ++step) {
    StepRecord record = step_record();
    record.step = step;
    sink.write(record);
    sink.write(ep_record());
    sink.flush();
    EXPECT_EQ(lines().size(), static_cast<size_t>(1 + 2 * step));
  }
  const auto all = lines();
  for (size_t i = 0; i < all.size(); ++i) {
    const Json json = Json::parse(all[i]);
    ASSERT_TRUE(json.is_object());
    EXPECT_EQ(json["type"], i == 0 ? "run" : i % 2 == 1 ? "step" : "ep");
    if (json["type"] == "step") {
      EXPECT_EQ(json["step"], (i + 1) / 2);
    }
  }
}

TEST_F(Jsonl, NothingIsWrittenBeforeFlush) {
  JsonlSink sink(path());
  sink.write(step_record());
  EXPECT_TRUE(lines().empty());
  sink.flush();
  EXPECT_EQ(lines().size(), 1U);
  sink.flush();
  EXPECT_EQ(lines().size(), 1U);
}

TEST_F(Jsonl, TheDestructorFlushes) {
  { JsonlSink(path()).write(step_record()); }
  EXPECT_EQ(lines().size(), 1U);
}

TEST_F(Jsonl, AnExistingFileIsContinued) {
  { JsonlSink(path()).write(step_record()); }
  { JsonlSink(path()).write(ep_record()); }
  const auto all = lines();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(Json::parse(all[0])["type"], "step");
  EXPECT_EQ(Json::parse(all[1])["type"], "ep");
}

TEST_F(Jsonl, APathThatCannotBeOpenedIsNamed) {
  for (const auto& bad : {files_.path("missing/metrics.jsonl"), files_.folder().string()}) {
    try {
      const JsonlSink sink(bad);
      ADD_FAILURE() << "opened " << bad;
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find(bad), std::string::npos) << error.what();
    }
  }
}

TEST_F(Jsonl, AFullDiskIsReportedOnceAndNamed) {
  static_assert(!std::is_copy_constructible_v<JsonlSink>);
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  JsonlSink sink("/dev/full");
  sink.write(step_record());
  try {
    sink.flush();
    ADD_FAILURE() << "written";
  } catch (const DataError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("/dev/full"), std::string::npos) << text;
    EXPECT_NE(text.find("No space left"), std::string::npos) << text;
  }
  EXPECT_NO_THROW(sink.flush());  // the lines were given up
}

}  // namespace
}  // namespace spillway::metrics
