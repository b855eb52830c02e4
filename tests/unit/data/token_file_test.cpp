#include "spillway/data/token_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "spillway/core/error.h"
#include "support/process_status.h"
#include "support/temp_files.h"

namespace spillway::data {
namespace {

using spillway::testing::status_kib;
using spillway::testing::TempFiles;

constexpr int32_t kB = kBeginToken, kE = kEndToken;

std::vector<int32_t> read(const TokenStream& stream, int64_t begin, int64_t count) {
  constexpr int32_t kGuard = -7;
  std::vector<int32_t> tokens(static_cast<size_t>(count) + 2, kGuard);
  stream.read(begin, count, tokens.data() + 1);
  EXPECT_EQ(tokens.front(), kGuard) << "written before the output";
  EXPECT_EQ(tokens.back(), kGuard) << "written past the output";
  return {tokens.begin() + 1, tokens.end() - 1};
}

std::vector<int32_t> read_all(const TokenStream& stream) {
  return read(stream, 0, stream.num_tokens());
}

TEST(TokenStream, OneFileIsBeginBytesEnd) {
  const TempFiles files;
  const auto stream = TokenStream::open({files.write("a", "hi\n")}, TokenFormat::kText);
  EXPECT_EQ(stream.num_tokens(), 5);
  EXPECT_EQ(read_all(stream), (std::vector<int32_t>{kB, 'h', 'i', '\n', kE}));
}

TEST(TokenStream, OneByteFile) {
  const TempFiles files;
  const auto stream = TokenStream::open({files.write("a", "x")}, TokenFormat::kText);
  EXPECT_EQ(read_all(stream), (std::vector<int32_t>{kB, 'x', kE}));
}

TEST(TokenStream, BytesAbove127AreIdsNotNegative) {
  const TempFiles files;
  const auto stream =
      TokenStream::open({files.write("a", "\xc3\xa9\xff")}, TokenFormat::kText);  // é, then 0xff
  EXPECT_EQ(read_all(stream), (std::vector<int32_t>{kB, 0xc3, 0xa9, 0xff, kE}));
}

TEST(TokenStream, EveryByteValueIncludingZero) {
  const TempFiles files;
  std::string bytes(256, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  const auto stream = TokenStream::open({files.write("a", bytes)}, TokenFormat::kText);
  const auto tokens = read(stream, 1, 256);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(tokens[static_cast<size_t>(i)], i);
}

TEST(TokenStream, FilesAreConcatenatedInTheGivenOrder) {
  const TempFiles files;
  const auto a = files.write("a", "a"), b = files.write("b", "bb");
  const auto stream = TokenStream::open({b, a, b}, TokenFormat::kText);
  EXPECT_EQ(stream.num_tokens(), 11);
  EXPECT_EQ(read_all(stream),
            (std::vector<int32_t>{kB, 'b', 'b', kE, kB, 'a', kE, kB, 'b', 'b', kE}));
}

TEST(TokenStream, EveryRangeOfSeveralFilesEqualsThePartOfTheWhole) {
  const TempFiles files;
  const auto stream = TokenStream::open(
      {files.write("a", "abc"), files.write("b", "d"), files.write("c", "ef")}, TokenFormat::kText);
  const std::vector<int32_t> all = {kB, 'a', 'b', 'c', kE, kB, 'd', kE, kB, 'e', 'f', kE};
  ASSERT_EQ(stream.num_tokens(), static_cast<int64_t>(all.size()));
  for (int64_t begin = 0; begin <= stream.num_tokens(); ++begin) {
    for (int64_t count = 0; begin + count <= stream.num_tokens(); ++count) {
      const std::vector<int32_t> expected(all.begin() + begin, all.begin() + begin + count);
      EXPECT_EQ(read(stream, begin, count), expected) << begin << " +" << count;
    }
  }
}

TEST(TokenStream, MovingKeepsTheTokens) {
  static_assert(!std::is_copy_constructible_v<TokenStream>);
  static_assert(!std::is_copy_constructible_v<MappedFile>);
  const TempFiles files;
  auto first = TokenStream::open({files.write("a", "one")}, TokenFormat::kText);
  TokenStream second = std::move(first);
  EXPECT_EQ(second.num_tokens(), 5);
  second = TokenStream::open({files.write("b", "twice")}, TokenFormat::kText);
  EXPECT_EQ(read(second, 1, 5), (std::vector<int32_t>{'t', 'w', 'i', 'c', 'e'}));
}

TEST(MappedFile, MoveAssignmentFreesTheOldMappingAndTakesTheNew) {
  const TempFiles files;
  MappedFile a(files.write("a", "aaa"));
  MappedFile b(files.write("b", "bb"));
  a = std::move(b);
  EXPECT_EQ(a.size_bytes(), 2);
  EXPECT_EQ(a.bytes()[1], 'b');
  EXPECT_EQ(b.size_bytes(), 0);
}

struct BadRange {
  const char* name;
  int64_t begin, count;
};
class TokenStreamRange : public ::testing::TestWithParam<BadRange> {};
TEST_P(TokenStreamRange, OutsideTheStreamThrows) {
  const TempFiles files;
  const auto stream = TokenStream::open({files.write("a", "abc")}, TokenFormat::kText);
  int32_t token = 0;
  EXPECT_THROW(stream.read(GetParam().begin, GetParam().count, &token), Error);
}
INSTANTIATE_TEST_SUITE_P(
    Ranges, TokenStreamRange,
    ::testing::Values(BadRange{"before", -1, 1}, BadRange{"negative_count", 0, -1},
                      BadRange{"at_the_end", 5, 1}, BadRange{"over_the_end", 3, 3},
                      BadRange{"overflowing", 4, std::numeric_limits<int64_t>::max()}),
    [](const auto& p) { return p.param.name; });

/// The text of the DataError of opening these paths; fails the test when there is none.
std::string data_error(const std::vector<std::string>& paths) {
  try {
    TokenStream::open(paths, TokenFormat::kText);
  } catch (const DataError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kData);
    return error.what();
  }
  ADD_FAILURE() << "no DataError";
  return {};
}

TEST(TokenStreamErrors, MissingFileIsNamed) {
  const TempFiles files;
  const auto good = files.write("good", "x");
  const auto text = data_error({good, files.path("missing.txt")});
  EXPECT_NE(text.find(files.path("missing.txt")), std::string::npos) << text;
  EXPECT_NE(text.find("No such file"), std::string::npos) << text;
}

TEST(TokenStreamErrors, EmptyFileIsNamed) {
  const TempFiles files;
  const auto text = data_error({files.write("empty.txt", "")});
  EXPECT_NE(text.find(files.path("empty.txt")), std::string::npos) << text;
  EXPECT_NE(text.find("is empty"), std::string::npos) << text;
}

TEST(TokenStreamErrors, DirectoryIsNamed) {
  const TempFiles files;
  const auto text = data_error({files.path("")});
  EXPECT_NE(text.find(files.path("")), std::string::npos) << text;
  EXPECT_NE(text.find("directory"), std::string::npos) << text;
}

TEST(TokenStreamErrors, PipeIsRefusedAndNotWaitedFor) {
  const TempFiles files;
  ASSERT_EQ(::mkfifo(files.path("pipe").c_str(), 0600), 0);
  EXPECT_NE(data_error({files.path("pipe")}).find("regular file"), std::string::npos);
}

TEST(TokenStreamErrors, UnreadableFileIsNamed) {
  const TempFiles files;
  const auto path = files.write("secret.txt", "x");
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  if (::access(path.c_str(), R_OK) == 0) GTEST_SKIP() << "this user may read every file";
  EXPECT_NE(data_error({path}).find(path), std::string::npos);
}

TEST(TokenStreamErrors, NoPathAtAll) { data_error({}); }

// A file far larger than memory should allow: opening must read nothing, reading only what it
// asks for.
constexpr int64_t kHugeBytes = int64_t{8} << 30;

TEST(HugeFile, OpensAtOnce) {
  const TempFiles files;
  const auto path = files.write_sparse("huge", kHugeBytes);
  // Best of a few: the machine may be busy, but reading 8 GiB never gets under this limit.
  constexpr double kMaxOpenMs = 10;
  double best_ms = std::numeric_limits<double>::infinity();
  for (int attempt = 0; attempt < 5; ++attempt) {
    const auto start = std::chrono::steady_clock::now();
    const auto stream = TokenStream::open({path}, TokenFormat::kText);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    best_ms = std::min(best_ms, took.count());
    EXPECT_EQ(stream.num_tokens(), kHugeBytes + 2);
  }
  EXPECT_LT(best_ms, kMaxOpenMs);
}

TEST(HugeFile, ReadingBatchesKeepsMemorySmall) {
  const TempFiles files;
  const auto stream =
      TokenStream::open({files.write_sparse("huge", kHugeBytes)}, TokenFormat::kText);
  ASSERT_GT(status_kib("VmRSS"), 0);
  const int64_t rss_before = status_kib("VmRSS"), file_before = status_kib("RssFile");
  constexpr int64_t kReads = 1000, kTokens = 257, kMaxGrowthKib = 16 * 1024;
  std::vector<int32_t> tokens(kTokens);
  for (int64_t i = 0; i < kReads; ++i) {
    stream.read(1 + i * (kHugeBytes / kReads), kTokens, tokens.data());
    ASSERT_EQ(tokens[0], 0);
  }
  // 1000 places of at most 2 pages are 8 MiB; with read-ahead they were measured to take 63 MiB.
  EXPECT_LT(status_kib("VmRSS") - rss_before, kMaxGrowthKib);
  EXPECT_LT(status_kib("RssFile") - file_before, kMaxGrowthKib);
  EXPECT_EQ(read(stream, kHugeBytes, 2), (std::vector<int32_t>{0, kE}));
}

}  // namespace
}  // namespace spillway::data
