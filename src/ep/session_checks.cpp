// What every use of a routing handle checks. The header is host memory: no synchronisation.
#include <array>

#include "spillway/core/choice.h"
#include "spillway/ep/session.h"

namespace spillway::ep {
namespace {

template <typename T>
void require_field(const char* where, const char* field, const T& in_handle, const T& wanted,
                   const char* whose) {
  if (in_handle == wanted) return;
  throw Error(str(where, ": the handle's ", field, " is ", in_handle, ", ", whose, " ", wanted));
}

constexpr const char* kSession = "the session's is";
constexpr const char* kCall = "the call's is";

// Header fields that hold an enum: its name, or the number when there is none.
std::string drop_order_name(int64_t value) {
  const auto name = choice_name(plan::kDropOrderChoices, static_cast<plan::DropOrder>(value));
  return name == "unknown" ? str(value) : std::string(name);
}

std::string dtype_text(int64_t value) {
  constexpr std::array kDTypes = {DType::kF32, DType::kF64, DType::kBF16, DType::kI32, DType::kI64};
  for (const DType dtype : kDTypes) {
    if (static_cast<int64_t>(dtype) == value) return std::string(dtype_name(dtype));
  }
  return str(value);
}

// The parts that no header field names: their sizes follow from it, and a transport trusts them.
void check_parts(const RoutingHandle& handle, const char* where) {
  const HandleHeader& header = handle.header;
  const Shape map_shape{header.num_tokens, header.top_k};
  require_field(where, "[num_tokens, top_k]", map_shape, handle.row_of.shape(), "its map's are");
  const int64_t num_zones = header.num_experts / header.ep;
  const auto require_entries = [&](const char* name, const std::vector<int64_t>& counts,
                                   int64_t entries) {
    require_field(where, str("number of ", name).c_str(), static_cast<int64_t>(counts.size()),
                  entries, "num_experts and ep give");
  };
  require_entries("send_counts", handle.send_counts, header.num_experts);
  require_entries("recv_counts", handle.recv_counts, header.num_experts);
  require_entries("token_counts", handle.token_counts, num_zones);
  require_entries("slot_counts", handle.slot_counts, num_zones);
  require_entries("zone_begin", handle.zone_begin, num_zones);
}

// Rows are staged by the maps and moved by the counts: a map of another length would be overrun.
void check_map_lengths(const RoutingHandle& handle, int64_t rank, const char* where) {
  int64_t num_sent = 0, num_local = 0;
  const int64_t num_zones = handle.header.num_experts / handle.header.ep;
  for (int64_t expert = 0; expert < handle.header.num_experts; ++expert) {
    const int64_t count = handle.send_counts[static_cast<size_t>(expert)];
    (expert / num_zones == rank ? num_local : num_sent) += count;
  }
  const Shape sent{num_sent}, local{num_local};
  constexpr const char* kCounts = "its send_counts give";
  require_field(where, "send_assignment", handle.send_assignment.shape(), sent, kCounts);
  require_field(where, "local_assignment", handle.local_assignment.shape(), local, kCounts);
  require_field(where, "local_slot", handle.local_slot.shape(), local, kCounts);
}

}  // namespace

// The checksum first: a header that fails it says nothing. Then what the header is, whose, and of
// which call.
void Session::check_handle(const RoutingHandle& handle, const Call& call, const char* where) const {
  SPILLWAY_CHECK(handle.defined(), where, ": the handle is undefined");
  const HandleHeader& header = handle.header;
  if (header.checksum != header_checksum(header)) {
    throw Error(str(where, ": handle header corrupted"));
  }
  require_field(where, "magic", header.magic, kHandleMagic, kSession);
  require_field(where, "version", header.version, kHandleVersion, kSession);
  require_field(where, "session_id", header.session_id, session_id_, kSession);
  if (header.epoch != epoch_) {
    throw Error(
        str(where, ": stale handle: its epoch is ", header.epoch, ", the session's is ", epoch_));
  }
  require_active(where);
  require_field(where, "layer", header.layer, call.layer, kCall);
  require_field(where, "micro_batch", header.micro_batch, call.micro_batch, kCall);
  require_field(where, "step", header.step, call.step, kCall);
  require_layer(where, header.layer);
  require_field(where, "top_k", header.top_k, config_.top_k, kSession);
  require_field(where, "num_experts", header.num_experts, config_.num_experts, kSession);
  require_field(where, "ep", header.ep, config_.ep, kSession);
  require_field(where, "alignment", header.alignment, config_.alignment, kSession);
  require_field(where, "index_type", dtype_text(header.index_type),
                dtype_text(static_cast<int64_t>(kIndexType)), kSession);
  require_field(where, "drop_order", drop_order_name(header.drop_order),
                drop_order_name(static_cast<int64_t>(config_.drop_order)), kSession);
  check_parts(handle, where);
  if (config_.poison && header.maps_checksum != maps_checksum(handle)) {
    throw Error(str(where, ": handle maps corrupted"));
  }
  check_map_lengths(handle, topology_.ep_rank(), where);
}

void Session::check_slots(const RoutingHandle& handle, const char* where, const char* name,
                          const Tensor& rows) const {
  SPILLWAY_CHECK(rows.defined() && rows.shape().rank() == 2, where, ": ", name,
                 " must be a matrix [C,H]");
  require_field(where, "capacity", handle.header.capacity, rows.dim(0),
                str(name, "'s rows are").c_str());
  check_row_type(where, name, rows);
}

void Session::check_tokens(const RoutingHandle& handle, const char* where, const char* name,
                           const Tensor& rows) const {
  SPILLWAY_CHECK(rows.defined() && rows.shape().rank() == 2, where, ": ", name,
                 " must be a matrix [T,H]");
  require_field(where, "num_tokens", handle.header.num_tokens, rows.dim(0),
                str(name, "'s rows are").c_str());
  check_row_type(where, name, rows);
}

void Session::check_row_type(const char* where, const char* name, const Tensor& rows) const {
  SPILLWAY_CHECK(rows.dim(1) == config_.hidden, where, ": ", name, " has rows of ", rows.dim(1),
                 "; allowed: hidden = ", config_.hidden);
  SPILLWAY_CHECK(rows.dtype() == config_.dtype, where, ": ", name, " is ", dtype_name(rows.dtype()),
                 "; allowed: the session's ", dtype_name(config_.dtype));
}

void Session::check_gates(const char* where, const char* name, const Tensor& gates,
                          const Shape& wanted) const {
  SPILLWAY_CHECK(gates.defined() && gates.shape() == wanted, where, ": ", name, " has shape ",
                 gates.defined() ? gates.shape().str() : "(undefined)", "; allowed: ", wanted);
  SPILLWAY_CHECK(gates.dtype() == DType::kF32 || gates.dtype() == DType::kF64, where, ": ", name,
                 " is ", dtype_name(gates.dtype()), "; allowed: f32, f64");
}

}  // namespace spillway::ep
