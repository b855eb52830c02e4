#include "agreement.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "spillway/core/error.h"

namespace spillway::checkpoint {
namespace {

struct Outcome {
  int32_t failed = 0;
  int32_t code = 0;
  std::array<char, 2040> text{};  // ends with a zero
};

Outcome failure(const std::string& text, ExitCode code) {
  Outcome outcome{.failed = 1, .code = static_cast<int32_t>(code)};
  const size_t length = std::min(text.size(), outcome.text.size() - 1);
  std::memcpy(outcome.text.data(), text.data(), length);
  return outcome;
}

[[noreturn]] void rethrow(const Outcome& outcome, size_t rank, int world) {
  const std::string text =
      world > 1 ? str("rank ", rank, ": ", outcome.text.data()) : outcome.text.data();
  switch (static_cast<ExitCode>(outcome.code)) {
    case ExitCode::kData:
      throw DataError(text);
    case ExitCode::kConfig:
      throw ConfigError(text);
    default:
      throw Error(text, static_cast<ExitCode>(outcome.code));
  }
}

}  // namespace

void on_every_rank(comm::Communicator& world, const std::function<void()>& work) {
  Outcome mine;
  try {
    work();
  } catch (const Error& error) {
    mine = failure(error.what(), error.exit_code());
  } catch (const std::exception& error) {
    mine = failure(error.what(), ExitCode::kOther);
  }
  std::vector<Outcome> all(static_cast<size_t>(world.size()));
  world.all_gather(&mine, all.data(), sizeof mine);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].failed != 0) rethrow(all[rank], rank, world.size());
  }
}

}  // namespace spillway::checkpoint
