#include "manifest.h"

#include <bit>
#include <charconv>
#include <cmath>

#include "checksum.h"
#include "file_errors.h"
#include "files.h"
#include "json.h"
#include "layout.h"

namespace spillway::checkpoint {
namespace {

constexpr int64_t kFormatVersion = 1;
constexpr const char* kFormat = "spillway checkpoint";

uint64_t parse_hex(const std::string& text) {
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, 16);
  if (error != std::errc() || rest != end || checksum_text(value) != text) {
    throw Error(str("\"", text, "\"; allowed: 16 hexadecimal digits"));
  }
  return value;
}

// JSON has no NaN and no infinities: those are their bits, as text.
OrderedJson double_json(double value) {
  if (std::isfinite(value)) return value;
  return checksum_text(std::bit_cast<uint64_t>(value));
}

double parse_double(const OrderedJson& json) {
  if (json.is_string()) return std::bit_cast<double>(parse_hex(json.get<std::string>()));
  return json.get<double>();
}

OrderedJson controller_json(const capacity::ControllerState& state) {
  OrderedJson json;
  json["policy"] = state.policy;
  json["observed_steps"] = state.observed_steps;
  json["worst_case_slots"] = state.worst_case_slots;
  json["balanced_slots"] = state.balanced_slots;
  json["start_capacities"] = state.start_capacities;
  json["capacities"] = state.capacities;
  json["demands"] = state.demands;
  OrderedJson& layers = json["policy_states"] = OrderedJson::array();
  for (const std::vector<double>& layer : state.policy_states) {
    OrderedJson values = OrderedJson::array();
    for (const double value : layer) values.push_back(double_json(value));
    layers.push_back(std::move(values));
  }
  return json;
}

capacity::ControllerState parse_controller(const OrderedJson& json) {
  capacity::ControllerState state;
  json.at("policy").get_to(state.policy);
  json.at("observed_steps").get_to(state.observed_steps);
  json.at("worst_case_slots").get_to(state.worst_case_slots);
  json.at("balanced_slots").get_to(state.balanced_slots);
  json.at("start_capacities").get_to(state.start_capacities);
  json.at("capacities").get_to(state.capacities);
  json.at("demands").get_to(state.demands);
  for (const OrderedJson& layer : json.at("policy_states")) {
    std::vector<double>& values = state.policy_states.emplace_back();
    for (const OrderedJson& value : layer) values.push_back(parse_double(value));
  }
  return state;
}

OrderedJson config_json(const std::string& text) {
  if (text.empty()) return nullptr;
  try {
    return OrderedJson::parse(text);
  } catch (const OrderedJson::parse_error& error) {
    throw Error(str("RunState::config_json is not JSON at byte ", error.byte));
  }
}

RunState parse_state(const OrderedJson& json) {
  RunState state;
  json.at("version").get_to(state.version);
  json.at("step").get_to(state.step);
  json.at("updates").get_to(state.updates);
  json.at("epoch").get_to(state.epoch);
  json.at("evaluation_due").get_to(state.evaluation_due);
  json.at("world").get_to(state.world);
  json.at("ep").get_to(state.ep);
  json.at("threads").get_to(state.threads);
  if (!json.at("controller").is_null()) state.controller = parse_controller(json.at("controller"));
  if (!json.at("config").is_null()) state.config_json = json.at("config").dump(2);
  return state;
}

}  // namespace

const ManifestFile* Manifest::find(const std::string& name) const {
  for (const ManifestFile& file : files) {
    if (file.name == name) return &file;
  }
  return nullptr;
}

std::string manifest_text(const Manifest& manifest) {
  const RunState& state = manifest.state;
  OrderedJson json;
  json["format"] = kFormat;
  json["format_version"] = kFormatVersion;
  json["version"] = state.version;
  json["step"] = state.step;
  json["updates"] = state.updates;
  json["epoch"] = state.epoch;
  json["evaluation_due"] = state.evaluation_due;
  json["world"] = state.world;
  json["ep"] = state.ep;
  json["dp"] = state.world / state.ep;
  json["threads"] = state.threads;
  json["checksum"] = kChecksumName;
  OrderedJson& files = json["files"] = OrderedJson::array();
  for (const ManifestFile& file : manifest.files) {
    OrderedJson entry;
    entry["name"] = file.name;
    entry["bytes"] = file.facts.bytes;
    entry["checksum"] = checksum_text(file.facts.checksum);
    files.push_back(std::move(entry));
  }
  json["controller"] = nullptr;
  if (state.controller) json["controller"] = controller_json(*state.controller);
  json["config"] = config_json(state.config_json);
  return json.dump(2) + "\n";
}

Manifest parse_manifest(const std::string& path, const std::string& text) {
  const OrderedJson json = parse_json<OrderedJson>(path, text);
  const auto is = [&json](const char* key, const auto& wanted) {
    const auto it = json.find(key);
    return it != json.end() && *it == wanted;
  };
  if (!is("format", kFormat)) fail_file(path, str("is not the manifest of a ", kFormat));
  if (!is("format_version", kFormatVersion)) {
    const auto it = json.find("format_version");
    fail_file(path, str("has format version ", it == json.end() ? "none" : it->dump(),
                        "; this program reads ", kFormatVersion));
  }
  if (!is("checksum", kChecksumName))
    fail_file(path, str("has no checksums of kind ", kChecksumName));
  Manifest manifest;
  try {
    manifest.state = parse_state(json);
    for (const OrderedJson& file : json.at("files")) {
      manifest.files.push_back({file.at("name").get<std::string>(),
                                {.bytes = file.at("bytes").get<int64_t>(),
                                 .checksum = parse_hex(file.at("checksum").get<std::string>())}});
    }
  } catch (const std::exception& error) {
    fail_file(path, str("cannot be understood: ", error.what()));
  }
  return manifest;
}

std::string committed_text(const FileFacts& manifest) {
  return str(kManifestFile, " ", checksum_text(manifest.checksum), "\n");
}

Manifest read_manifest(const std::string& checkpoint_dir) {
  const std::string committed = checkpoint_dir + "/" + kCommittedFile;
  const std::string path = checkpoint_dir + "/" + kManifestFile;
  if (!exists(checkpoint_dir)) {
    throw DataError(str("checkpoint \"", checkpoint_dir, "\": there is no such directory"));
  }
  if (!exists(committed)) {
    fail_file(committed, "is missing: the checkpoint was not written to its end");
  }
  const std::string text = read_text(path, kMaxTextBytes);
  const std::string found = read_text(committed, kMaxTextBytes);
  const std::string expected =
      committed_text({.bytes = static_cast<int64_t>(text.size()),
                      .checksum = checksum_of(std::as_bytes(std::span(std::as_const(text))))});
  if (found != expected) {
    // Printable, whatever the damage.
    std::string shown = found.substr(0, expected.size() + 1);
    for (char& c : shown) c = c >= ' ' && c <= '~' ? c : '?';
    fail_file(path,
              str("or \"", committed, "\" is damaged: the former asks for \"",
                  expected.substr(0, expected.size() - 1), "\", the latter holds \"", shown, "\""));
  }
  return parse_manifest(path, text);
}

void verify_file(const std::string& checkpoint_dir, const ManifestFile& file, int num_threads) {
  const std::string path = checkpoint_dir + "/" + file.name;
  const data::MappedFile mapping(path, data::Access::kSequential);
  if (mapping.size_bytes() != file.facts.bytes) {
    fail_file(path, str("has ", mapping.size_bytes(), " bytes, ", kManifestFile, " says ",
                        file.facts.bytes));
  }
  const uint64_t checksum = checksum_of(std::as_bytes(mapping.bytes()), num_threads);
  if (checksum != file.facts.checksum) {
    fail_file(path, str("is damaged: it has checksum ", checksum_text(checksum), ", ",
                        kManifestFile, " says ", checksum_text(file.facts.checksum)));
  }
}

}  // namespace spillway::checkpoint
