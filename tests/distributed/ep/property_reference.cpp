#include "distributed/ep/property_reference.h"

namespace spillway::ep::test {
namespace {

// All rows to one rank: by local expert, then source, then token.
std::vector<RoutedRow> rows_in_tail_order(const std::vector<std::vector<Choice>>& sources,
                                          const EpConfig& config, int64_t rank) {
  const int64_t experts_per_rank = config.num_experts / config.ep;
  std::vector<std::vector<RoutedRow>> cells(
      static_cast<size_t>(experts_per_rank * config.ep));  // [L, S]
  for (int64_t source = 0; source < config.ep; ++source) {
    const std::vector<Choice>& choices = sources[static_cast<size_t>(source)];
    for (size_t i = 0; i < choices.size(); ++i) {
      const int64_t local = choices[i].expert - rank * experts_per_rank;
      if (choices[i].expert < 0 || local < 0 || local >= experts_per_rank) continue;
      std::vector<RoutedRow>& cell = cells[static_cast<size_t>(local * config.ep + source)];
      const auto index = static_cast<int64_t>(i);
      cell.push_back({.local_expert = local,
                      .source = source,
                      .t = index / config.top_k,
                      .k = index % config.top_k,
                      .ordinal = static_cast<int64_t>(cell.size()),
                      .gate = choices[i].gate});
    }
  }
  std::vector<RoutedRow> rows;
  std::vector<int64_t> of_source(static_cast<size_t>(config.ep), 0);
  for (const std::vector<RoutedRow>& cell : cells) {
    for (RoutedRow row : cell) {
      row.ordinal_of_source = of_source[static_cast<size_t>(row.source)]++;
      rows.push_back(row);
    }
  }
  return rows;
}

uint64_t random_key(const RoutedRow& row, const EpConfig& config, const Call& call, int64_t rank) {
  const int64_t expert = rank * (config.num_experts / config.ep) + row.local_expert;
  uint64_t hash = 0;
  for (const int64_t word : {static_cast<int64_t>(config.drop_seed), call.step, call.micro_batch,
                             call.layer, expert, row.source, row.ordinal}) {
    hash = hash_chain(hash, static_cast<uint64_t>(word));
  }
  return hash;
}

// Indices of `rows` in the drop order; rows that the order does not tell apart stay in tail order.
std::vector<size_t> in_drop_order(const std::vector<RoutedRow>& rows, const EpConfig& config,
                                  const Call& call, int64_t rank) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto sort_by = [&](auto&& first) { std::stable_sort(order.begin(), order.end(), first); };
  if (config.drop_order == plan::DropOrder::kFair) {
    std::vector<int64_t> rows_of(static_cast<size_t>(config.ep), 0);
    for (const RoutedRow& row : rows) ++rows_of[static_cast<size_t>(row.source)];
    // (o + 1/2) / n of both, times 2 n n'.
    sort_by([&](size_t i, size_t j) {
      const RoutedRow &a = rows[i], &b = rows[j];
      const int64_t left = (2 * a.ordinal_of_source + 1) * rows_of[static_cast<size_t>(b.source)];
      const int64_t right = (2 * b.ordinal_of_source + 1) * rows_of[static_cast<size_t>(a.source)];
      if (left != right) return left < right;
      return (a.source + call.step) % config.ep < (b.source + call.step) % config.ep;
    });
  } else if (config.drop_order == plan::DropOrder::kRandom) {
    std::vector<uint64_t> keys;
    for (const RoutedRow& row : rows) keys.push_back(random_key(row, config, call, rank));
    sort_by([&](size_t i, size_t j) { return keys[i] < keys[j]; });
  } else if (config.drop_order == plan::DropOrder::kScore) {
    std::vector<double> gates;
    for (const RoutedRow& row : rows) {
      gates.push_back(spillway::testing::rounded(row.gate, DType::kBF16));
    }
    sort_by([&](size_t i, size_t j) { return gates[i] > gates[j]; });
  }
  return order;
}

// Marks the longest prefix of `order` whose padded zones fit.
void keep_longest_prefix(RankTruth& truth, const std::vector<size_t>& order, int64_t alignment,
                         int64_t capacity) {
  int64_t slots = 0;
  for (const size_t index : order) {
    RoutedRow& row = truth.rows[index];
    int64_t& count = truth.token_counts[static_cast<size_t>(row.local_expert)];
    slots += round_up(count + 1, alignment) - round_up(count, alignment);
    if (slots > capacity) return;
    ++count;
    ++truth.num_kept;
    row.kept = true;
  }
}

// Zones one after the other; inside by (source, token), which tail order is.
void place(RankTruth& truth, int64_t alignment) {
  int64_t begin = 0;
  for (const int64_t count : truth.token_counts) {
    truth.zone_begin.push_back(begin);
    truth.slot_counts.push_back(round_up(count, alignment));
    begin += truth.slot_counts.back();
  }
  std::vector<int64_t> next = truth.zone_begin;
  for (RoutedRow& row : truth.rows) {
    if (row.kept) row.slot = next[static_cast<size_t>(row.local_expert)]++;
  }
}

}  // namespace

int64_t RankTruth::num_slots() const {
  return std::accumulate(slot_counts.begin(), slot_counts.end(), int64_t{0});
}

std::vector<std::vector<Choice>> gather_choices(comm::Communicator& world,
                                                const std::vector<Choice>& mine,
                                                const EpConfig& config) {
  constexpr int64_t kAbsent = -2;
  const auto length = static_cast<size_t>(config.max_tokens_per_rank * config.top_k);
  std::vector<Choice> padded = mine;
  padded.resize(length, {.expert = kAbsent});
  std::vector<Choice> all(length * static_cast<size_t>(world.size()));
  world.all_gather(padded.data(), all.data(), static_cast<int64_t>(length * sizeof(Choice)));
  std::vector<std::vector<Choice>> ranks;
  for (auto begin = all.begin(); begin != all.end(); begin += static_cast<std::ptrdiff_t>(length)) {
    const auto end = std::find_if(begin, begin + static_cast<std::ptrdiff_t>(length),
                                  [](const Choice& c) { return c.expert == kAbsent; });
    ranks.emplace_back(begin, end);
  }
  return ranks;
}

int64_t demand_of(const std::vector<std::vector<Choice>>& sources, const EpConfig& config,
                  int64_t rank) {
  std::vector<int64_t> counts(static_cast<size_t>(config.num_experts), 0);
  for (const std::vector<Choice>& choices : sources) {
    for (const Choice& choice : choices) {
      if (choice.expert >= 0) ++counts[static_cast<size_t>(choice.expert)];
    }
  }
  const int64_t experts_per_rank = config.num_experts / config.ep;
  int64_t slots = 0;
  for (int64_t e = rank * experts_per_rank; e < (rank + 1) * experts_per_rank; ++e) {
    slots += round_up(counts[static_cast<size_t>(e)], config.alignment);
  }
  return slots;
}

std::vector<RankTruth> make_truth(const std::vector<std::vector<Choice>>& sources,
                                  const EpConfig& config, const Call& call, int64_t capacity) {
  std::vector<RankTruth> ranks(static_cast<size_t>(config.ep));
  for (int64_t rank = 0; rank < config.ep; ++rank) {
    RankTruth& truth = ranks[static_cast<size_t>(rank)];
    truth.rows = rows_in_tail_order(sources, config, rank);
    truth.demand = demand_of(sources, config, rank);
    truth.token_counts.assign(static_cast<size_t>(config.num_experts / config.ep), 0);
    keep_longest_prefix(truth, in_drop_order(truth.rows, config, call, rank), config.alignment,
                        capacity);
    place(truth, config.alignment);
  }
  return ranks;
}

}  // namespace spillway::ep::test
