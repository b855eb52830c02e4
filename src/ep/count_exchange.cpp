#include "count_exchange.h"

#include <array>

#include "agreement.h"
#include "spillway/kernels/routing.h"

namespace spillway::ep {
namespace {

// The record of one rank: what must be equal in the group, the rank's own facts, its counts.
constexpr std::array<const char*, 5> kCallFields = {"layer", "micro_batch", "step", "sizing",
                                                    "capacity"};
constexpr size_t kHasProblem = kCallFields.size();
constexpr size_t kNumTokens = kHasProblem + 1;
constexpr size_t kFirstCount = kNumTokens + 1;

// The first id out of range, or (in debug mode) twice in a token; empty when there is none.
std::string find_bad_id(const EpConfig& config, const Tensor& topk_idx) {
  const int32_t* ids = topk_idx.data<int32_t>();
  const int64_t num_tokens = topk_idx.dim(0), top_k = topk_idx.dim(1);
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t k = 0; k < top_k; ++k) {
      const int64_t id = ids[t * top_k + k];
      if (id < -1 || id >= config.num_experts) {
        return str("topk_idx[", t, ",", k, "] is ", id, "; allowed: -1 to ",
                   config.num_experts - 1);
      }
      for (int64_t j = 0; config.poison && id >= 0 && j < k; ++j) {
        if (ids[t * top_k + j] == id) {
          return str("topk_idx[", t, ",", j, "] and [", t, ",", k, "] are both ", id,
                     "; allowed: distinct experts");
        }
      }
    }
  }
  return "";
}

std::string find_problem(const EpConfig& config, const PrepareArgs& args) {
  const auto num_layers = static_cast<int64_t>(config.recv_capacity_per_rank.size());
  if (args.call.layer < 0 || args.call.layer >= num_layers) {
    return str("layer is ", args.call.layer, "; allowed: 0 to ", num_layers - 1);
  }
  if (args.capacity < 0 || args.capacity % config.alignment != 0) {
    return str("capacity is ", args.capacity,
               " slots; allowed: 0 or a multiple of alignment = ", config.alignment);
  }
  if (args.capacity > most_capacity(config)) {
    return str("capacity is ", args.capacity, " slots; allowed: at most ", most_capacity(config),
               ": the maps of a routing handle hold 31-bit indices");
  }
  const Tensor& ids = args.topk_idx;
  if (!ids.defined() || ids.dtype() != DType::kI32 || ids.shape().rank() != 2 ||
      ids.dim(1) != config.top_k) {
    return str("topk_idx is ", ids.defined() ? dtype_name(ids.dtype()) : "undefined", " ",
               ids.shape(), "; allowed: i32 [T, ", config.top_k, "]");
  }
  if (ids.dim(0) > config.max_tokens_per_rank) {
    return str("T is ", ids.dim(0),
               " tokens; allowed: at most max_tokens_per_rank = ", config.max_tokens_per_rank);
  }
  const Tensor& gate = args.gate;
  if (!gate.defined() || (gate.dtype() != DType::kF32 && gate.dtype() != DType::kF64) ||
      gate.shape() != ids.shape()) {
    return str("gate is ", gate.defined() ? dtype_name(gate.dtype()) : "undefined", " ",
               gate.shape(), "; allowed: f32 or f64 ", ids.shape());
  }
  // In range: counting finds out.
  return config.poison ? find_bad_id(config, ids) : "";
}

// Fills `problem` when there is one.
std::vector<int64_t> make_record(Context& ctx, const EpConfig& config, const PrepareArgs& args,
                                 std::string& problem) {
  std::vector<int64_t> record{args.call.layer,
                              args.call.micro_batch,
                              args.call.step,
                              static_cast<int64_t>(args.sizing),
                              args.capacity,
                              0,
                              0};
  record.resize(kFirstCount + static_cast<size_t>(config.num_experts), 0);
  problem = find_problem(config, args);
  if (problem.empty()) {
    Tensor counts = Tensor::empty(ctx, {config.num_experts}, DType::kI64, Purpose::kWorkspace);
    try {
      kernels::count_experts(ctx, args.topk_idx, counts);
      std::copy_n(counts.data<int64_t>(), config.num_experts, record.begin() + kFirstCount);
      record[kNumTokens] = args.topk_idx.dim(0);
    } catch (const Error& error) {
      const std::string bad_id = find_bad_id(config, args.topk_idx);
      problem = bad_id.empty() ? error.what() : bad_id;
    }
  }
  record[kHasProblem] = problem.empty() ? 0 : 1;
  return record;
}

void require_one_call(const std::vector<int64_t>& records, size_t length, int64_t first_rank) {
  for (size_t begin = length; begin < records.size(); begin += length) {
    for (size_t field = 0; field < kCallFields.size(); ++field) {
      if (records[begin + field] == records[field]) continue;
      throw Error(
          str("prepare: the ranks of an EP group are in different calls: ", kCallFields[field],
              " is ", records[field], " on rank ", first_rank, ", ", records[begin + field],
              " on rank ", first_rank + static_cast<int64_t>(begin / length)));
    }
  }
}

}  // namespace

GroupCounts exchange_counts(Context& ctx, const comm::Topology& topology, const EpConfig& config,
                            const PrepareArgs& args) {
  comm::Communicator& group = topology.ep_group();
  std::string problem;
  const std::vector<int64_t> mine = make_record(ctx, config, args, problem);
  if (!problem.empty()) {
    problem = str("prepare on rank ", topology.world().rank(), ": ", problem);
  }
  const size_t length = mine.size();
  std::vector<int64_t> records(length * static_cast<size_t>(group.size()));
  if (group.size() == 1) {
    records = mine;
  } else {
    group.all_gather(mine.data(), records.data(), static_cast<int64_t>(length * sizeof(int64_t)));
  }

  GroupCounts result;
  result.matrix = {.ep = config.ep, .num_experts = config.num_experts};
  bool any_problem = false;
  for (size_t begin = 0; begin < records.size(); begin += length) {
    const auto record = records.begin() + static_cast<std::ptrdiff_t>(begin);
    any_problem = any_problem || record[kHasProblem] != 0;
    result.num_tokens += record[kNumTokens];
    result.matrix.counts.insert(result.matrix.counts.end(), record + kFirstCount,
                                record + static_cast<std::ptrdiff_t>(length));
  }
  if (any_problem) throw_first_problem(group, problem);
  require_one_call(records, length, topology.world().rank() - topology.ep_rank());
  return result;
}

}  // namespace spillway::ep
