#include "spillway/core/log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

namespace spillway::log {
namespace {

using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

constexpr Level kMessageLevels[] = {Level::kDebug, Level::kInfo, Level::kWarning, Level::kError};

/// Counts how often it is printed.
struct Probe {
  int* printed;
  friend std::ostream& operator<<(std::ostream& out, const Probe& probe) {
    ++*probe.printed;
    return out << "probe";
  }
};

class Log : public ::testing::Test {
 protected:
  void TearDown() override { configure(0, Level::kInfo); }
};

struct LevelCase {
  const char* name;
  int rank;
  Level level;
  bool only_rank0;
  std::string shown;  // the initials of the messages that pass
};

class LogLevel : public Log, public ::testing::WithParamInterface<LevelCase> {};

TEST_P(LogLevel, ShowsThisLevelAndAbove) {
  const LevelCase& c = GetParam();
  configure(c.rank, c.level, c.only_rank0);
  CaptureStderr();
  debug("message D");
  info("message I");
  warning("message W");
  error("message E");
  const std::string text = GetCapturedStderr();
  std::string seen;
  for (size_t at = text.find("message "); at != text.npos; at = text.find("message ", at + 1)) {
    seen += text.at(at + 8);
  }
  EXPECT_EQ(seen, c.shown) << text;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(shown(kMessageLevels[i]), c.shown.find("DIWE"[i]) != c.shown.npos) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Log, LogLevel,
    ::testing::Values(LevelCase{"Debug", 0, Level::kDebug, true, "DIWE"},
                      LevelCase{"Info", 0, Level::kInfo, true, "IWE"},
                      LevelCase{"Warning", 0, Level::kWarning, true, "WE"},
                      LevelCase{"Error", 0, Level::kError, true, "E"},
                      LevelCase{"Off", 0, Level::kOff, true, ""},
                      LevelCase{"OtherRankDebug", 3, Level::kDebug, true, "WE"},
                      LevelCase{"OtherRankInfo", 3, Level::kInfo, true, "WE"},
                      LevelCase{"OtherRankError", 3, Level::kError, true, "E"},
                      LevelCase{"OtherRankOff", 3, Level::kOff, true, ""},
                      LevelCase{"EveryRankDebug", 3, Level::kDebug, false, "DIWE"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_F(Log, LineNamesRankAndLevel) {
  configure(5, Level::kInfo);
  CaptureStderr();
  warning("slots ", 3);
  const std::string text = GetCapturedStderr();
  EXPECT_NE(text.find("[rank 5] [warning] slots 3\n"), text.npos) << text;
}

TEST_F(Log, BracesAreText) {
  configure(0, Level::kInfo);
  CaptureStderr();
  info("{} {0} {", R"({"a": 1})");
  const std::string text = GetCapturedStderr();
  EXPECT_NE(text.find(R"({} {0} {{"a": 1})"), text.npos) << text;
}

TEST_F(Log, HiddenMessageIsNotEvenBuilt) {
  configure(0, Level::kInfo);
  int printed = 0;
  CaptureStderr();
  debug(Probe{&printed});
  EXPECT_EQ(printed, 0);
  info(Probe{&printed});
  EXPECT_EQ(printed, 1);
  GetCapturedStderr();
}

TEST_F(Log, NothingIsWrittenAtOff) {
  for (const Level level : {Level::kDebug, Level::kOff}) {
    configure(0, level);
    CaptureStderr();
    write(Level::kOff, "a message at the level off");
    EXPECT_EQ(GetCapturedStderr(), "");
  }
}

TEST_F(Log, LinesOfThreadsDoNotMix) {
  constexpr int kThreads = 4, kLines = 50;
  configure(0, Level::kInfo);
  CaptureStderr();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < kLines; ++i) info("begin of a line and its end");
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = GetCapturedStderr();
  const std::string tail = "[rank 0] [info] begin of a line and its end\n";
  int whole = 0;
  for (size_t at = text.find(tail); at != text.npos; at = text.find(tail, at + 1)) ++whole;
  EXPECT_EQ(whole, kThreads * kLines);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), kThreads * kLines);
}

}  // namespace
}  // namespace spillway::log
