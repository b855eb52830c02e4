#include "agreement.h"

#include <algorithm>
#include <random>

#include "config_fields.h"
#include "spillway/core/rng.h"

namespace spillway::ep {
namespace {

using Blob = std::vector<std::byte>;

Blob to_blob(const std::string& text) {
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

std::string to_text(const Blob& blob) {
  return {reinterpret_cast<const char*>(blob.data()), blob.size()};
}

// A text that rank 0 makes of all ranks' texts, on every rank.
template <typename Judge>
std::string judge_at_root(comm::Communicator& comm, const std::string& mine, Judge&& judge) {
  const std::vector<Blob> blobs = comm.gather_to_root(to_blob(mine));
  Blob verdict;
  if (comm.rank() == 0) {
    std::vector<std::string> texts;
    for (const Blob& blob : blobs) texts.push_back(to_text(blob));
    verdict = to_blob(judge(texts));
  }
  comm.broadcast_from_root(verdict);
  return to_text(verdict);
}

std::string serialise(const EpConfig& config) {
  std::string text;
  for (const auto& [name, value] : config_fields(config)) text += name + "=" + value + "\n";
  return text;
}

uint64_t hash_text(const std::string& text) {
  uint64_t hash = text.size();
  for (const char c : text) hash = mix64(hash * 257 + static_cast<unsigned char>(c) + 1);
  return hash;
}

std::vector<ConfigField> parse(const std::string& text) {
  std::vector<ConfigField> fields;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t cut = line.find('=');
    fields.push_back({line.substr(0, cut), line.substr(cut + 1)});
  }
  return fields;
}

// The first field that is not equal everywhere, with rank 0's value and the next other one.
std::string first_difference(const std::vector<std::string>& texts) {
  std::vector<std::vector<ConfigField>> configs;
  for (const std::string& text : texts) configs.push_back(parse(text));
  for (size_t field = 0; field < configs[0].size(); ++field) {
    const std::string& value = configs[0][field].value;
    const auto other = std::find_if(configs.begin(), configs.end(), [&](const auto& config) {
      return config[field].value != value;
    });
    if (other == configs.end()) continue;
    const std::string& other_value = (*other)[field].value;
    std::string ranks_here, ranks_there;
    for (size_t rank = 0; rank < configs.size(); ++rank) {
      const std::string& at_rank = configs[rank][field].value;
      if (at_rank == value) ranks_here += str(ranks_here.empty() ? "" : ", ", rank);
      if (at_rank == other_value) ranks_there += str(ranks_there.empty() ? "" : ", ", rank);
    }
    return str("EpConfig.", configs[0][field].name, " differs over the world: ", value, " on rank ",
               ranks_here, "; ", other_value, " on rank ", ranks_there);
  }
  return "EpConfig differs over the world";
}

}  // namespace

void agree_on_config(comm::Communicator& world, const EpConfig& config) {
  const std::string mine = serialise(config);
  const uint64_t hash = hash_text(mine);
  std::vector<uint64_t> hashes(static_cast<size_t>(world.size()));
  world.all_gather(&hash, hashes.data(), sizeof(hash));
  const bool equal =
      std::all_of(hashes.begin(), hashes.end(), [&](uint64_t other) { return other == hashes[0]; });
  if (equal) return;
  throw ConfigError(judge_at_root(world, mine, first_difference));
}

uint64_t agree_on_session_id(comm::Communicator& world) {
  Blob blob(sizeof(uint64_t));
  uint64_t id = 0;
  if (world.rank() == 0) {
    std::random_device source;
    while (id == 0) id = uint64_t{source()} << 32 | source();
    std::copy_n(reinterpret_cast<const std::byte*>(&id), sizeof(id), blob.begin());
  }
  world.broadcast_from_root(blob);
  std::copy_n(blob.begin(), sizeof(id), reinterpret_cast<std::byte*>(&id));
  return id;
}

void agree_on_no_live_handles(comm::Communicator& world, int64_t live_here) {
  std::vector<int64_t> live(static_cast<size_t>(world.size()));
  world.all_gather(&live_here, live.data(), sizeof(live_here));
  int64_t total = 0;
  std::string by_rank;
  for (size_t rank = 0; rank < live.size(); ++rank) {
    if (live[rank] == 0) continue;
    total += live[rank];
    by_rank += str(by_rank.empty() ? "" : ", ", live[rank], " on rank ", rank);
  }
  if (total > 0) {
    throw Error(str("reconfigure: ", total, " routing handles are alive (", by_rank,
                    "); allowed: none, release what the tape holds first"));
  }
}

void throw_first_problem(comm::Communicator& group, const std::string& mine) {
  throw Error(judge_at_root(group, mine, [](const std::vector<std::string>& texts) {
    return *std::find_if(texts.begin(), texts.end(),
                         [](const std::string& text) { return !text.empty(); });
  }));
}

}  // namespace spillway::ep
