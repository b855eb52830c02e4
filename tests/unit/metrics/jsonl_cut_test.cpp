#include "spillway/metrics/jsonl_cut.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "spillway/core/error.h"
#include "support/temp_files.h"
#include "support/throws.h"

namespace spillway::metrics {
namespace {

using testing::TempFiles;
using testing::throws_with;

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

const std::string kRun = R"({"type":"run","world":2})"
                         "\n";
std::string step_line(int step) {
  return str(R"({"type":"step","step":)", step, R"(,"loss":1.50})", "\n");
}

TEST(JsonlCut, RemovesLaterStepsAndNothingElse) {
  const TempFiles files;
  const std::string path = files.write(
      "m.jsonl", kRun + step_line(1) + step_line(2) + R"({"type":"eval","step":2})" + "\n" +
                     step_line(3) + R"({"type":"warning","step":null})" + "\n" + step_line(4));
  EXPECT_EQ(cut_after(path, 2), 2);
  EXPECT_EQ(text_of(path), kRun + step_line(1) + step_line(2) + R"({"type":"eval","step":2})" +
                               "\n" + R"({"type":"warning","step":null})" + "\n");
}

TEST(JsonlCut, AnEvaluationThatIsMadeAgain) {
  const TempFiles files;
  const std::string eval = R"({"type":"eval","step":2})"
                           "\n";
  const std::string earlier = R"({"type":"eval","step":1})"
                              "\n";
  const std::string path =
      files.write("m.jsonl", step_line(1) + earlier + step_line(2) + eval + step_line(3));
  EXPECT_EQ(cut_after(path, 2, /*evaluation_again=*/true), 2);
  EXPECT_EQ(text_of(path), step_line(1) + earlier + step_line(2));
}

TEST(JsonlCut, BytesOfKeptLinesStay) {
  const TempFiles files;
  const std::string line = R"({ "type" : "step", "step": 1, "loss": 1.5000 })"
                           "\n";
  const std::string path = files.write("m.jsonl", line);
  EXPECT_EQ(cut_after(path, 1), 0);
  EXPECT_EQ(text_of(path), line);
}

TEST(JsonlCut, AnUnfinishedLastLineGoes) {
  const TempFiles files;
  const std::string whole = step_line(2);
  // Whatever the place where the writer died: even a whole object without its newline.
  for (size_t length = 1; length < whole.size(); ++length) {
    const std::string path = files.write("m.jsonl", step_line(1) + whole.substr(0, length));
    EXPECT_EQ(cut_after(path, 5), 1) << length;
    EXPECT_EQ(text_of(path), step_line(1)) << length;
  }
}

TEST(JsonlCut, ToTheStart) {
  const TempFiles files;
  const std::string path = files.write("m.jsonl", kRun + step_line(1));
  EXPECT_EQ(cut_after(path, 0), 1);
  EXPECT_EQ(text_of(path), kRun);
}

TEST(JsonlCut, NoFileIsNothingToDo) {
  const TempFiles files;
  EXPECT_EQ(cut_after(files.path("none.jsonl"), 3), 0);
  EXPECT_FALSE(std::filesystem::exists(files.path("none.jsonl")));
}

TEST(JsonlCut, DamageInTheMiddleIsNamedAndNothingIsLost) {
  const TempFiles files;
  const std::string text = step_line(1) + "garbage\n" + step_line(2);
  const std::string path = files.write("m.jsonl", text);
  EXPECT_TRUE(throws_with<DataError>([&] { cut_after(path, 1); }, {"m.jsonl", "line 2"}));
  EXPECT_EQ(text_of(path), text);
}

}  // namespace
}  // namespace spillway::metrics
