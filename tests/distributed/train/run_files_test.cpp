// What surrounds the step loop: run directory, fatal mark, the config that rank 0 reads, signals,
// metrics of a whole run.
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "spillway/config/json.h"
#include "spillway/train/fatal_mark.h"
#include "spillway/train/run_dir.h"
#include "spillway/train/run_options.h"
#include "support/train_fixture.h"

namespace spillway::train {
namespace {

namespace fs = std::filesystem;

std::vector<nlohmann::json> read_lines(const fs::path& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

int64_t count_lines(const std::vector<nlohmann::json>& lines, const std::string& type) {
  int64_t count = 0;
  for (const nlohmann::json& line : lines) count += line.at("type") == type ? 1 : 0;
  return count;
}

// ---- run directory (a matter of rank 0) ---------------------------------------------------------

class RunDirTest : public TrainTest {
 protected:
  static std::string refusal(const fs::path& dir) {
    try {
      prepare_run_dir(dir.string(), "metrics.jsonl", false);
      return "";
    } catch (const ConfigError& error) {
      return error.what();
    }
  }
};

TEST_F(RunDirTest, IsMadeWithItsParents) {
  if (!is_root()) return;
  EXPECT_EQ(refusal(folder() / "a" / "b"), "");
  EXPECT_TRUE(fs::is_directory(folder() / "a" / "b"));
}

TEST_F(RunDirTest, AnEmptyOneOrOneWithOtherFilesIsTaken) {
  if (!is_root()) return;
  fs::create_directories(folder() / "run");
  EXPECT_EQ(refusal(folder() / "run"), "");
  std::ofstream(folder() / "run" / "notes.txt") << "mine";
  EXPECT_EQ(refusal(folder() / "run"), "");
}

TEST_F(RunDirTest, OneInUseIsRefused) {
  if (!is_root()) return;
  const fs::path dir = folder() / "run";
  {
    const RunDirLock held = prepare_run_dir(dir.string(), "metrics.jsonl", false);
    EXPECT_NE(refusal(dir).find("in use by another job"), std::string::npos);
  }
  EXPECT_EQ(refusal(dir), "") << "free again";
}

TEST_F(RunDirTest, OneWithMetricsIsTakenByARunThatResumes) {
  if (!is_root()) return;
  fs::create_directories(folder() / "run" / "checkpoints");
  std::ofstream(folder() / "run" / "metrics.jsonl") << "{}\n";
  EXPECT_NO_THROW(prepare_run_dir((folder() / "run").string(), "metrics.jsonl", true));
}

TEST_F(RunDirTest, OneWithMetricsIsRefused) {
  if (!is_root()) return;
  fs::create_directories(folder() / "run");
  std::ofstream(folder() / "run" / "metrics.jsonl") << "{}\n";
  const std::string text = refusal(folder() / "run");
  EXPECT_EQ(text.find("run.dir: '"), 0U) << text;
  EXPECT_NE(text.find("metrics.jsonl"), std::string::npos) << text;
  EXPECT_EQ(fs::file_size(folder() / "run" / "metrics.jsonl"), 3U) << "untouched";
}

TEST_F(RunDirTest, OneWithCheckpointsIsRefused) {
  if (!is_root()) return;
  fs::create_directories(folder() / "run" / "checkpoints");
  EXPECT_NE(refusal(folder() / "run").find("checkpoints"), std::string::npos);
}

TEST_F(RunDirTest, AFileIsRefused) {
  if (!is_root()) return;
  EXPECT_NE(refusal(text_path()).find("not a directory"), std::string::npos);
  EXPECT_NE(refusal(fs::path(text_path()) / "below").find("run.dir"), std::string::npos);
}

// ---- fatal mark ---------------------------------------------------------------------------------

TEST_F(TrainTest, FatalMarkHasOneOwner) {
  world().barrier();
  const int64_t mine = claim_fatal_mark(folder().string(), world().rank(), "it broke") ? 1 : 0;
  std::vector<int64_t> all(static_cast<size_t>(world().size()));
  world().all_gather(&mine, all.data(), sizeof(mine));
  EXPECT_EQ(sum(all), 1);
  EXPECT_FALSE(claim_fatal_mark(folder().string(), world().rank(), "again"));
  if (mine == 0) return;
  std::ifstream in(folder() / "fatal");
  std::string text;
  std::getline(in, text);
  EXPECT_EQ(text, str("rank ", world().rank(), ": it broke"));
}

TEST_F(TrainTest, FatalMarkCanBeClaimedAfterItsRemoval) {
  if (!is_root()) return;
  EXPECT_TRUE(claim_fatal_mark(folder().string(), 0, "x"));
  remove_fatal_mark(folder().string());
  EXPECT_FALSE(fs::exists(folder() / "fatal"));
  EXPECT_TRUE(claim_fatal_mark(folder().string(), 0, "x"));
  EXPECT_NO_THROW(remove_fatal_mark((folder() / "nowhere").string()));
}

TEST_F(TrainTest, FatalMarkThatCannotBeWrittenSilencesNobody) {
  EXPECT_TRUE(claim_fatal_mark((folder() / "nowhere").string(), world().rank(), "x"));
}

// ---- the shared config --------------------------------------------------------------------------

class SharedConfigTest : public TrainTest {
 protected:
  /// `text` as the config file that rank 0 reads.
  RunOptions options(const std::string& text) {
    const fs::path path = folder() / "config.json";
    if (is_root()) std::ofstream(path) << text;
    return {.config_path = path.string()};
  }
  /// The error, which every rank must have; a failure when there is none.
  void expect_error(const RunOptions& options, ExitCode code, const std::string& part) {
    bool thrown = false;
    try {
      shared_config(world(), options);
    } catch (const SharedError& error) {
      thrown = true;
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      EXPECT_EQ(error.exit_code(), code);
    }
    EXPECT_TRUE(thrown);
    world().barrier();  // all ranks are in step afterwards
  }
};

TEST_F(SharedConfigTest, IsTheSameOnAllRanks) {
  config::Config wanted = base_config();
  wanted.optim.lr = 0.1 + 0.2;  // no short decimal
  wanted.optim.min_lr = 0.1;
  wanted.capacity.initial = {.worst_case = false, .factor = 1.25};
  const config::Config got = shared_config(world(), options(config::to_json_text(wanted)));
  EXPECT_EQ(config::to_json_text(got), config::to_json_text(wanted));
  EXPECT_TRUE(same_bits(got.optim.lr, wanted.optim.lr));
  world().barrier();
  EXPECT_TRUE(fs::is_directory(wanted.run.dir));
}

TEST_F(SharedConfigTest, CommandLineWinsOverTheFile) {
  RunOptions o = options(config::to_json_text(base_config()));
  o.assignments = {"train.steps=7", "run.dir=elsewhere"};
  for (const char* name : {"2027", "true", "a \"b\" \\ c"}) {
    o.run_dir = (folder() / name).string();
    EXPECT_EQ(shared_config(world(), o).run.dir, o.run_dir);
  }
  o.validate = true;
  o.run_dir = "2027";  // a number, if it were read as JSON
  const config::Config got = shared_config(world(), o);
  EXPECT_EQ(got.run.dir, "2027");
  EXPECT_EQ(got.train.steps, 7);
}

TEST_F(SharedConfigTest, TransportMpiNeedsMpirun) {
  if (!is_root()) return;
  config::Config wanted = base_config();
  wanted.parallel.ep = 1;
  wanted.parallel.transport = config::Transport::kMpi;
  const auto self = comm::make_self_communicator();
  try {
    shared_config(*self, options(config::to_json_text(wanted)));
    ADD_FAILURE() << "taken without mpirun";
  } catch (const SharedError& error) {
    EXPECT_EQ(std::string(error.what()).find("parallel.transport: \"mpi\""), 0U) << error.what();
    EXPECT_EQ(error.exit_code(), ExitCode::kConfig);
  }
}

TEST_F(SharedConfigTest, ValidatingMakesNothing) {
  RunOptions o = options(config::to_json_text(base_config()));
  o.validate = true;
  o.world = 16;
  EXPECT_EQ(shared_config(world(), o).run.dir, base_config().run.dir);
  world().barrier();
  EXPECT_FALSE(fs::exists(base_config().run.dir));
}

TEST_F(SharedConfigTest, MissingFileReachesAllRanks) {
  RunOptions o;
  o.config_path = (folder() / "nowhere.json").string();
  expect_error(o, ExitCode::kConfig, "nowhere.json");
}

TEST_F(SharedConfigTest, BadValueReachesAllRanks) {
  config::Config bad = base_config();
  bad.parallel.ep = 3;
  expect_error(options(config::to_json_text(bad)), ExitCode::kConfig, "parallel.ep is 3");
}

TEST_F(SharedConfigTest, WorldIsForValidationOnly) {
  RunOptions o = options(config::to_json_text(base_config()));
  o.world = 2;
  expect_error(o, ExitCode::kConfig, "--world 2");
}

TEST_F(SharedConfigTest, UsedRunDirectoryReachesAllRanks) {
  const config::Config c = base_config();
  if (is_root()) {
    fs::create_directories(c.run.dir);
    std::ofstream(fs::path(c.run.dir) / c.log.metrics) << "{}\n";
  }
  expect_error(options(config::to_json_text(c)), ExitCode::kConfig, "run.dir");
}

TEST_F(SharedConfigTest, TakesAnOldFatalMarkAway) {
  const config::Config c = base_config();
  if (is_root()) {
    fs::create_directories(c.run.dir);
    claim_fatal_mark(c.run.dir, 0, "an earlier run");
  }
  shared_config(world(), options(config::to_json_text(c)));
  world().barrier();
  EXPECT_FALSE(fs::exists(fs::path(c.run.dir) / "fatal"));
}

// ---- signals ------------------------------------------------------------------------------------

TEST(SignalGateTest, HandsOutEachSignalOnce) {
  SignalGate gate;
  EXPECT_FALSE(gate.take().stop);
  std::raise(SIGUSR2);
  PendingSignals pending = gate.take();
  EXPECT_TRUE(pending.stop);
  EXPECT_FALSE(pending.checkpoint);
  pending = gate.take();
  EXPECT_FALSE(pending.stop);
  std::raise(SIGUSR1);
  std::raise(SIGUSR1);
  pending = gate.take();
  EXPECT_TRUE(pending.checkpoint);
  EXPECT_FALSE(pending.stop);
  EXPECT_FALSE(gate.take().checkpoint);
}

TEST(SignalGateTest, TakesBothAtOnce) {
  SignalGate gate;
  std::raise(SIGUSR1);
  std::raise(SIGUSR2);
  const PendingSignals pending = gate.take();
  EXPECT_TRUE(pending.checkpoint);
  EXPECT_TRUE(pending.stop);
}

TEST(SignalGateTest, HoldsSignalsThatWereIgnoredBefore) {
  std::signal(SIGUSR2, SIG_IGN);  // as a launcher may have left it
  SignalGate gate;
  std::raise(SIGUSR2);
  EXPECT_TRUE(gate.take().stop);
}

// ---- a whole run --------------------------------------------------------------------------------

class WholeRunTest : public TrainTest {
 protected:
  config::Config config() {
    config::Config c = with_split(base_config(), {world().size(), 1}, 1, 2);
    c.train.steps = 4;
    c.train.eval_every = 2;
    c.train.eval_steps = 2;
    c.data.valid = c.data.train;
    return c;
  }
  void prepare(const config::Config& c) {
    if (is_root()) prepare_run_dir(c.run.dir, c.log.metrics, false);
    world().barrier();
  }
};

TEST_F(WholeRunTest, WritesEveryLine) {
  const config::Config c = config();
  prepare(c);
  TrainRun run(world(), c);
  run.trainer.run();
  if (!is_root()) return;
  const auto lines = read_lines(fs::path(c.run.dir) / "metrics.jsonl");
  EXPECT_EQ(lines.front().at("type"), "run");
  EXPECT_EQ(count_lines(lines, "run"), 1);
  EXPECT_EQ(count_lines(lines, "step"), 4);
  EXPECT_EQ(count_lines(lines, "ep"), 4 * 2 * 2);
  EXPECT_EQ(count_lines(lines, "ep_step"), 4 * 2);
  EXPECT_EQ(count_lines(lines, "counters"), 4);
  EXPECT_EQ(count_lines(lines, "eval"), 2);
  EXPECT_EQ(lines.back().at("type"), "eval") << "the last step is evaluated once";
  const std::string text = run.trainer.summary_text();
  EXPECT_NE(text.find("Trained 4 steps"), std::string::npos) << text;
  EXPECT_NE(text.find("Held-out loss"), std::string::npos) << text;
  EXPECT_NE(text.find("bigram"), std::string::npos) << text;
}

TEST_F(WholeRunTest, EvaluatesAfterTheLastStepByDefault) {
  config::Config c = config();
  c.train.eval_every = 0;
  c.log.ep = config::EpLines::kSummary;
  prepare(c);
  TrainRun run(world(), c);
  run.trainer.run();
  if (!is_root()) return;
  const auto lines = read_lines(fs::path(c.run.dir) / "metrics.jsonl");
  EXPECT_EQ(count_lines(lines, "eval"), 1);
  EXPECT_EQ(lines.back().at("step"), 4);
  EXPECT_EQ(count_lines(lines, "ep"), 0) << "summary only";
  EXPECT_EQ(count_lines(lines, "ep_step"), 8);
}

TEST_F(WholeRunTest, StopSignalOnOneRankEndsAllAfterTheStep) {
  const config::Config c = config();
  prepare(c);
  TrainRun run(world(), c);
  if (world().rank() == world().size() - 1) std::raise(SIGUSR2);
  run.trainer.run();
  if (!is_root()) return;
  const auto lines = read_lines(fs::path(c.run.dir) / "metrics.jsonl");
  EXPECT_EQ(count_lines(lines, "step"), 1);
  EXPECT_EQ(count_lines(lines, "eval"), 0);
  EXPECT_EQ(count_lines(lines, "counters"), 1) << "the step is complete";
}

TEST_F(WholeRunTest, CheckpointSignalIsAgreedOnAndGoesOn) {
  TrainRun run(world(), config());
  if (is_root()) std::raise(SIGUSR1);
  EXPECT_EQ(run.trainer.step(1).agreement.checkpoint, 1);
  EXPECT_EQ(run.trainer.step(2).agreement.checkpoint, 0);
}

}  // namespace
}  // namespace spillway::train
