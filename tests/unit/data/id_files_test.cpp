// Files of u16 and u32 ids.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "spillway/core/error.h"
#include "spillway/data/batches.h"
#include "spillway/data/token_file.h"
#include "support/process_status.h"
#include "support/temp_files.h"
#include "support/throws.h"

namespace spillway::data {
namespace {

using spillway::testing::expect_holds;
using spillway::testing::status_kib;
using spillway::testing::TempFiles;

/// Little-endian ids of `width` bytes.
std::string bytes_of(const std::vector<uint32_t>& ids, int width) {
  std::string bytes;
  for (const uint32_t id : ids) {
    for (int i = 0; i < width; ++i) bytes.push_back(static_cast<char>(id >> (8 * i) & 0xffU));
  }
  return bytes;
}

std::vector<int32_t> read(const TokenStream& stream, int64_t begin, int64_t count) {
  constexpr int32_t kGuard = -7;
  std::vector<int32_t> tokens(static_cast<size_t>(count) + 2, kGuard);
  stream.read(begin, count, tokens.data() + 1);
  EXPECT_EQ(tokens.front(), kGuard) << "written before the output";
  EXPECT_EQ(tokens.back(), kGuard) << "written past the output";
  return {tokens.begin() + 1, tokens.end() - 1};
}

std::string data_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const DataError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kData);
    return error.what();
  }
  ADD_FAILURE() << "no DataError";
  return {};
}

struct Format {
  const char* name;
  TokenFormat format;
  int width;
  uint32_t highest;  ///< that a file can hold and a tensor too
};
class IdFiles : public ::testing::TestWithParam<Format> {
 protected:
  std::string write(const std::string& name, const std::vector<uint32_t>& ids) {
    return files_.write(name, bytes_of(ids, GetParam().width));
  }
  TokenStream open(const std::vector<std::string>& paths, int64_t vocab_size = kMaxVocabSize) {
    return TokenStream::open(paths, GetParam().format, vocab_size);
  }
  TempFiles files_;
};

TEST_P(IdFiles, AreReadAsTheyAreWithNothingAdded) {
  const auto highest = static_cast<int32_t>(GetParam().highest);
  const auto stream = open({write("a", {0, 1, 256, 257, 258, 0x1234, GetParam().highest})});
  EXPECT_EQ(stream.num_tokens(), 7);
  EXPECT_EQ(read(stream, 0, 7), (std::vector<int32_t>{0, 1, 256, 257, 258, 0x1234, highest}));
}

TEST_P(IdFiles, EveryRangeOfSeveralFilesEqualsThePartOfTheWhole) {
  const auto stream = open({write("a", {5, 6, 7}), write("b", {8}), write("c", {9, 10})});
  const std::vector<int32_t> all = {5, 6, 7, 8, 9, 10};
  ASSERT_EQ(stream.num_tokens(), 6);
  for (int64_t begin = 0; begin <= 6; ++begin) {
    for (int64_t count = 0; begin + count <= 6; ++count) {
      const std::vector<int32_t> expected(all.begin() + begin, all.begin() + begin + count);
      EXPECT_EQ(read(stream, begin, count), expected) << begin << " +" << count;
    }
  }
}

TEST_P(IdFiles, SequencesRunAcrossFiles) {
  Context ctx;
  const BatchSource source(open({write("a", {1, 2, 3}), write("b", {4, 5, 6, 7})}, 8),
                           {.seq = 3, .shuffle = false, .layout = {.micro_batch = 2}});
  const Batch batch = source.batch(ctx, 1, 0);
  const auto tokens = batch.tokens.span<int32_t>(), targets = batch.targets.span<int32_t>();
  EXPECT_EQ(std::vector(tokens.begin(), tokens.end()), (std::vector<int32_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(std::vector(targets.begin(), targets.end()), (std::vector<int32_t>{2, 3, 4, 5, 6, 7}));
}

TEST_P(IdFiles, ASizeThatHoldsNoWholeIdsIsNamed) {
  const auto good = write("good", {1, 2});
  for (int extra = 1; extra < GetParam().width; ++extra) {
    const std::string bytes(static_cast<size_t>(4 * GetParam().width + extra), '\0');
    const auto bad = files_.write("bad", bytes);
    expect_holds(data_error([&] {
                   (void)open({good, bad});
                 }),
                 {bad, std::to_string(bytes.size()) + " bytes", GetParam().name});
  }
}

TEST_P(IdFiles, AnIdOutsideTheVocabularyIsNamedWithItsPlace) {
  const auto good = write("good", {1, 2, 3}), bad = write("bad", {4, 99, 100, 5});
  const auto stream = open({good, bad}, 100);
  EXPECT_EQ(read(stream, 0, 5), (std::vector<int32_t>{1, 2, 3, 4, 99}));
  EXPECT_EQ(read(stream, 6, 1), (std::vector<int32_t>{5}));
  const std::string text = data_error([&] { (void)read(stream, 2, 5); });
  expect_holds(text, {bad, "token 2 ", "(byte " + std::to_string(2 * GetParam().width) + ")",
                      "id 100;", "0 to 99", "model.vocab_size 100"});
  EXPECT_EQ(text.find(good), std::string::npos) << text;
}

TEST_P(IdFiles, ABatchWithABadIdIsRefusedAndTheOthersAreNot) {
  Context ctx;
  const BatchSource source(open({write("a", {1, 2, 3, 4, 5, 50})}, 50),
                           {.seq = 1, .shuffle = false});
  for (int64_t step = 1; step <= 4; ++step) EXPECT_NO_THROW((void)source.batch(ctx, step, 0));
  // Its target is the bad one: a token is looked at wherever it is used.
  expect_holds(data_error([&] { (void)source.batch(ctx, 5, 0); }), {"token 5 ", "id 50;"});
}

TEST_P(IdFiles, EmptyFilesAreRefused) {
  expect_holds(data_error([&] { (void)open({write("empty", {})}); }), {"empty"});
}

INSTANTIATE_TEST_SUITE_P(Formats, IdFiles,
                         ::testing::Values(Format{"u16", TokenFormat::kU16, 2, 0xffffU},
                                           Format{"u32", TokenFormat::kU32, 4, 0x7fffffffU}),
                         [](const auto& p) { return p.param.name; });

TEST(IdFilesU32, WhatDoesNotFitATensorIsRefusedWhateverTheVocabulary) {
  const TempFiles files;
  const auto path = files.write("a", bytes_of({7, 0x80000000U, 0xffffffffU}, 4));
  const auto stream =
      TokenStream::open({path}, TokenFormat::kU32, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(read(stream, 0, 1), (std::vector<int32_t>{7}));
  expect_holds(data_error([&] { (void)read(stream, 1, 1); }), {"id 2147483648;"});
  expect_holds(data_error([&] { (void)read(stream, 2, 1); }), {"id 4294967295;"});
}

// As for text: opening reads nothing, reading only what it asks for.
constexpr int64_t kHugeBytes = int64_t{8} << 30;

TEST(HugeIdFile, OpensAtOnceAndKeepsMemorySmall) {
  const TempFiles files;
  const auto path = files.write_sparse("huge", kHugeBytes);
  constexpr double kMaxOpenMs = 10;  // reading 8 GiB never gets under this
  double best_ms = std::numeric_limits<double>::infinity();
  for (int attempt = 0; attempt < 5; ++attempt) {
    const auto start = std::chrono::steady_clock::now();
    const auto stream = TokenStream::open({path}, TokenFormat::kU32, 10);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    best_ms = std::min(best_ms, took.count());
  }
  EXPECT_LT(best_ms, kMaxOpenMs);

  const auto stream = TokenStream::open({path}, TokenFormat::kU32, 10);
  const int64_t num_tokens = kHugeBytes / 4;
  ASSERT_EQ(stream.num_tokens(), num_tokens);
  ASSERT_GT(status_kib("VmRSS"), 0);
  const int64_t rss_before = status_kib("VmRSS");
  // 1000 places of at most 2 pages are 8 MiB.
  constexpr int64_t kReads = 1000, kTokens = 257, kMaxGrowthKib = 16 * 1024;
  std::vector<int32_t> tokens(kTokens);
  for (int64_t i = 0; i < kReads; ++i) {
    stream.read(i * (num_tokens / kReads), kTokens, tokens.data());
    ASSERT_EQ(tokens[0], 0);
  }
  EXPECT_LT(status_kib("VmRSS") - rss_before, kMaxGrowthKib);
  EXPECT_EQ(read(stream, num_tokens - 1, 1), (std::vector<int32_t>{0}));
}

}  // namespace
}  // namespace spillway::data
