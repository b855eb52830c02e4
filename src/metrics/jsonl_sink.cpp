#include "spillway/metrics/jsonl_sink.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "spillway/core/error.h"
#include "spillway/core/log.h"

namespace spillway::metrics {
namespace {

using Json = nlohmann::ordered_json;  // fields in the order of the structs

template <typename T>
Json value_or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

const char* kind_name(ReconfigureKind kind) {
  switch (kind) {
    case ReconfigureKind::kPolicy:
      return "policy";
    case ReconfigureKind::kGrow:
      return "grow";
    case ReconfigureKind::kResume:
      return "resume";
  }
  return "?";
}

void put_counters(Json& json, const CounterValues& values) {
  json["prepares"] = values.prepares;
  json["fused_prepares"] = values.fused_prepares;
  json["forward_dispatches"] = values.forward_dispatches;
  json["combines"] = values.combines;
  json["backward_transports"] = values.backward_transports;
  json["host_syncs"] = values.host_syncs;
  json["all_to_all_bytes"] = values.all_to_all_bytes;
}

void put_memory(Json& json, const MemoryByPurpose& bytes) {
  json["weights"] = bytes.weights;
  json["gradients"] = bytes.gradients;
  json["optimizer"] = bytes.optimizer;
  json["activations"] = bytes.activations;
  json["receive"] = bytes.receive;
  json["workspace"] = bytes.workspace;
  json["data"] = bytes.data;
}

void put_saved(Json& json, const SavedBytes& bytes) {
  json["routing"] = bytes.routing;
  json["dispatch"] = bytes.dispatch;
  json["router"] = bytes.router;
  json["expert_up"] = bytes.expert_up;
  json["expert_act"] = bytes.expert_act;
  json["attention"] = bytes.attention;
}

void append_text(std::string& out, const Json& text) {
  constexpr int kCompact = -1;
  constexpr bool kEnsureAscii = false;
  // `replace`: a message may quote bytes of a file; metrics must not throw for that.
  out += text.dump(kCompact, ' ', kEnsureAscii, Json::error_handler_t::replace);
}

/// The shortest form, which the library's own writer (Grisu2) misses now and then.
void append_number(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  std::array<char, 32> digits;  // the longest is "-2.2250738585072014e-308"
  const auto written = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  const std::string_view text(digits.data(), static_cast<size_t>(written.ptr - digits.data()));
  out += text;
  if (text.find_first_of(".e") == std::string_view::npos) out += ".0";  // stays a float
}

/// Compact JSON: objects and arrays here, for the sake of the numbers in them; leaves as they are.
void append_json(std::string& out, const Json& json) {
  if (json.is_number_float()) {
    append_number(out, json.get<double>());
  } else if (json.is_structured()) {
    out += json.is_object() ? '{' : '[';
    bool first = true;
    for (const auto& item : json.items()) {
      if (!std::exchange(first, false)) out += ',';
      if (json.is_object()) {
        append_text(out, item.key());
        out += ':';
      }
      append_json(out, item.value());
    }
    out += json.is_object() ? '}' : ']';
  } else {
    append_text(out, json);
  }
}

void append_line(std::string& lines, const Json& json) {
  append_json(lines, json);
  lines += '\n';
}

}  // namespace

JsonlSink::JsonlSink(const std::string& path) : path_(path) {
  constexpr mode_t kMode = 0644;
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kMode);
  if (fd_ < 0) {
    throw DataError(str("metrics file \"", path, "\" cannot be opened: ", std::strerror(errno)));
  }
}

JsonlSink::~JsonlSink() {
  try {
    flush();
  } catch (const std::exception& failure) {
    log::error(failure.what());
  }
  ::close(fd_);
}

void JsonlSink::flush() {
  // Taken out first: a failed flush must not come back from the destructor.
  const std::string lines = std::exchange(pending_, {});
  std::string_view rest = lines;
  while (!rest.empty()) {
    const ssize_t written = ::write(fd_, rest.data(), rest.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      throw DataError(
          str("metrics file \"", path_, "\" cannot be written: ", std::strerror(errno)));
    }
    rest.remove_prefix(static_cast<size_t>(written));
  }
}

void JsonlSink::write(const RunRecord& record) {
  Json config = Json::parse(record.config_json, nullptr, /*allow_exceptions=*/false);
  SPILLWAY_CHECK(config.is_object(), "config_json is no JSON object");
  Json json;
  json["type"] = "run";
  json["config"] = std::move(config);
  json["git_commit"] = record.git_commit;
  json["world"] = record.world;
  json["ep"] = record.ep;
  json["dp"] = record.dp;
  json["device"] = record.device;
  json["threads"] = record.threads;
  json["parameters"]["total"] = record.parameters_total;
  json["parameters"]["active"] = record.parameters_active;
  json["resumed_from"] = value_or_null(record.resumed_from);
  append_line(pending_, json);
}

void JsonlSink::write(const StepRecord& record) {
  Json json;
  json["type"] = "step";
  json["step"] = record.step;
  json["loss"] = record.loss;
  json["aux_loss"] = record.aux_loss;
  json["z_loss"] = record.z_loss;
  json["grad_norm"] = record.grad_norm;
  json["lr"] = record.lr;
  json["tokens"] = record.tokens;
  json["step_ms"] = record.step_ms;
  json["tokens_per_s"] = record.tokens_per_s;
  json["tflops"] = record.tflops;
  json["mfu"] = value_or_null(record.mfu);
  json["mem_peak_bytes"] = record.mem_peak_bytes;
  put_memory(json["mem_peak_by_purpose"], record.mem_peak_by_purpose);
  put_saved(json["saved_bytes"], record.saved_bytes);
  json["skipped"] = record.skipped;
  append_line(pending_, json);
}

void JsonlSink::write(const EpRecord& record) {
  Json json;
  json["type"] = "ep";
  json["step"] = record.step;
  json["micro_batch"] = record.micro_batch;
  json["layer"] = record.layer;
  json["epoch"] = record.epoch;
  json["capacity"] = record.capacity;
  json["capacity_end"] = record.capacity_end;
  json["total_recv_tokens"] = record.total_recv_tokens;
  json["recv_assignments"] = value_or_null(record.recv_assignments);
  json["slot_counts_sum"] = value_or_null(record.slot_counts_sum);
  json["dropped_assignments"] = value_or_null(record.dropped_assignments);
  json["dropped_by_expert"] = value_or_null(record.dropped_by_expert);
  json["dropped_by_source"] = value_or_null(record.dropped_by_source);
  json["fully_dropped_tokens"] = value_or_null(record.fully_dropped_tokens);
  json["padding_slots"] = value_or_null(record.padding_slots);
  json["expert_tokens"] = value_or_null(record.expert_tokens);
  json["gate_mass"] = value_or_null(record.gate_mass);
  json["dropped_gate_mass"] = value_or_null(record.dropped_gate_mass);
  json["balanced_slots"] = record.balanced_slots;
  json["worst_case_slots"] = record.worst_case_slots;
  json["max_over_balanced"] = record.max_over_balanced;
  json["headroom"] = record.headroom;
  json["recv_buffer_bytes"] = record.recv_buffer_bytes;
  json["capacity_sized_bytes"] = record.capacity_sized_bytes;
  append_line(pending_, json);
}

void JsonlSink::write(const EpStepRecord& record) {
  Json json;
  json["type"] = "ep_step";
  json["step"] = record.step;
  json["layer"] = record.layer;
  json["max_total_recv_tokens"] = record.max_total_recv_tokens;
  json["dropped_assignments"] = value_or_null(record.dropped_assignments);
  json["fully_dropped_tokens"] = value_or_null(record.fully_dropped_tokens);
  json["dropped_gate_mass"] = value_or_null(record.dropped_gate_mass);
  json["capacity"] = record.capacity;
  json["capacity_end"] = record.capacity_end;
  json["grow_events"] = record.grow_events;
  append_line(pending_, json);
}

void JsonlSink::write(const CountersRecord& record) {
  Json json;
  json["type"] = "counters";
  json["step"] = record.step;
  put_counters(json, record.total);
  put_counters(json["backward"], record.backward);
  put_counters(json["avoided"], record.avoided);
  append_line(pending_, json);
}

void JsonlSink::write(const ReconfigureRecord& record) {
  Json json;
  json["type"] = "reconfigure";
  json["step"] = record.step;
  json["epoch"] = record.epoch;
  json["layer"] = record.layer;
  json["kind"] = kind_name(record.kind);
  json["group"] = record.group;
  json["micro_batch"] = value_or_null(record.micro_batch);
  json["old_capacity"] = record.old_capacity;
  json["new_capacity"] = record.new_capacity;
  json["reason"] = record.reason;
  json["mode"] = record.mode;
  json["drain_ms"] = record.drain_ms;
  json["finalize_ms"] = record.finalize_ms;
  json["init_ms"] = record.init_ms;
  json["alloc_ms"] = record.alloc_ms;
  append_line(pending_, json);
}

void JsonlSink::write(const EvalRecord& record) {
  Json json;
  json["type"] = "eval";
  json["step"] = record.step;
  json["loss"] = record.loss;
  json["tokens"] = record.tokens;
  json["dropped_assignments"] = value_or_null(record.dropped_assignments);
  append_line(pending_, json);
}

void JsonlSink::write(const CheckpointRecord& record) {
  Json json;
  json["type"] = "checkpoint";
  json["step"] = record.step;
  json["path"] = record.path;
  json["bytes"] = record.bytes;
  json["write_ms"] = record.write_ms;
  append_line(pending_, json);
}

void JsonlSink::write(const WarningRecord& record) {
  Json json;
  json["type"] = "warning";
  json["step"] = value_or_null(record.step);
  json["message"] = record.message;
  append_line(pending_, json);
}

}  // namespace spillway::metrics
