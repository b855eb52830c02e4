#include "spillway/train/step_timer.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "spillway/core/rng.h"
#include "spillway/train/run_options.h"
#include "spillway/train/trainer.h"

namespace spillway::train {
namespace {

/// A file of random bytes that lives as long as this: the trainer reads its data from files.
class RandomText {
 public:
  RandomText(int64_t num_bytes, uint64_t seed)
      : path_((std::filesystem::temp_directory_path() / "spillway_bench_XXXXXX").string()) {
    const int fd = mkstemp(path_.data());
    if (fd < 0) throw DataError(str(path_, ": cannot be made"));
    close(fd);
    const Rng rng(seed);
    std::string bytes(static_cast<size_t>(num_bytes), '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(rng.at(i) & 0xff);
    std::ofstream out(path_, std::ios::binary);
    out << bytes << std::flush;
    if (!out) {
      unlink(path_.c_str());  // a constructor that throws has no destructor
      throw DataError(str(path_, ": cannot write ", num_bytes, " bytes"));
    }
  }
  ~RandomText() { unlink(path_.c_str()); }
  RandomText(const RandomText&) = delete;
  RandomText& operator=(const RandomText&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

config::Config step_timer_config(comm::Communicator& world, const std::string& config_path,
                                 std::vector<std::string> assignments) {
  // The file is named when it is made; validation wants a name.
  for (const char* data : {R"(data.train=["random"])", "data.valid=[]", R"(data.format="text")"}) {
    assignments.emplace_back(data);
  }
  // To validate only, that is, without a run directory.
  const config::Config config = shared_config(
      world, {.config_path = config_path, .assignments = assignments, .validate = true});
  if (config::device(config) != Device::kCpu) {
    throw SharedError("run.device: \"cuda\" is not in this build; allowed: \"auto\", \"cpu\"",
                      ExitCode::kConfig);
  }
  return config;
}

StepTimes time_steps(Context& ctx, comm::Communicator& world, const config::Config& config,
                     int64_t warmup, int64_t steps) {
  using Clock = std::chrono::steady_clock;
  SPILLWAY_CHECK(steps >= 1 && warmup >= 0, steps, " steps after ", warmup, "; at least 1 after 0");
  config::Config timed = config;
  StepTimes times;
  times.tokens = config::sequences_per_step(config, world.size()) * config.data.seq;
  // A few global batches; the shuffled epochs make more of them.
  constexpr int64_t kBatches = 4;
  const RandomText text(kBatches * times.tokens, static_cast<uint64_t>(config.run.seed));
  timed.data.train = {text.path()};
  timed.data.valid.clear();
  timed.data.format = data::TokenFormat::kText;
  timed.train.steps = warmup + steps;
  SignalGate signals;
  Trainer trainer(ctx, world, timed, signals);
  for (int64_t s = 1; s <= warmup + steps; ++s) {
    world.barrier();
    const Clock::time_point start = Clock::now();
    const Trainer::StepResult result = trainer.step(s);
    world.barrier();
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    if (s > warmup) times.ms.push_back(ms);
    times.mem_peak_bytes = std::max(times.mem_peak_bytes, result.record.mem_peak_bytes);
    times.loss = result.record.loss;
  }
  return times;
}

Spread spread(std::vector<double> values) {
  SPILLWAY_CHECK(!values.empty(), "no values to sum up");
  std::sort(values.begin(), values.end());
  return {.median = values[values.size() / 2], .min = values.front(), .max = values.back()};
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

}  // namespace spillway::train
