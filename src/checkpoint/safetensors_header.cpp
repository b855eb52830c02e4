#include "safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "json.h"

namespace spillway::checkpoint {
namespace {

using Entry = SafetensorsFile::Entry;

constexpr std::array<std::pair<std::string_view, DType>, 5> kDtypes{{
    {"F32", DType::kF32},
    {"F64", DType::kF64},
    {"BF16", DType::kBF16},
    {"I32", DType::kI32},
    {"I64", DType::kI64},
}};

std::string_view format_name(DType dtype) {
  for (const auto& [name, value] : kDtypes) {
    if (value == dtype) return name;
  }
  throw Error(str("dtype ", dtype_name(dtype), " has no name in safetensors"));
}

// JSON's own escapes; Error for text that is not UTF-8.
std::string quoted(const std::string& text) {
  try {
    return Json(text).dump();
  } catch (const Json::exception&) {
    throw Error("the name of a tensor is not UTF-8");
  }
}

// Where a defect is, for the text of its error.
struct Place {
  const std::string& path;
  const std::string& tensor;

  [[noreturn]] void fail(const std::string& why) const {
    throw DataError(str("checkpoint file \"", path, "\": tensor \"", tensor, "\": ", why));
  }
};

const Json& member(const Json& info, const char* key, const Place& place) {
  const auto it = info.find(key);
  if (it == info.end()) place.fail(str("has no \"", key, "\""));
  return *it;
}

DType parse_dtype(const Json& value, const Place& place) {
  if (!value.is_string()) place.fail(str("dtype is ", value.dump(), "; allowed: a text"));
  const std::string& name = value.get_ref<const std::string&>();
  for (const auto& [known, dtype] : kDtypes) {
    if (known == name) return dtype;
  }
  const char* const why =
      name == "F16" ? ": half precision is not read, its range is too small for a conversion back"
                    : "";
  place.fail(str("dtype is \"", name, "\"", why, "; allowed: F32, F64, BF16, I32, I64"));
}

int64_t parse_size(const Json& value, const char* what, const Place& place) {
  constexpr uint64_t kLargest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (!value.is_number_unsigned() || value.get<uint64_t>() > kLargest) {
    place.fail(str(what, " has ", value.dump(), "; allowed: whole numbers from 0 to ", kLargest));
  }
  return value.get<int64_t>();
}

Shape parse_shape(const Json& value, const Place& place) {
  if (!value.is_array()) place.fail(str("shape is ", value.dump(), "; allowed: an array"));
  if (value.size() > static_cast<size_t>(Shape::kMaxRank)) {
    place.fail(str("shape ", value.dump(), " has ", value.size(), " dimensions; allowed: up to ",
                   Shape::kMaxRank));
  }
  std::array<int64_t, Shape::kMaxRank> dims{};
  for (size_t i = 0; i < value.size(); ++i) dims[i] = parse_size(value[i], "shape", place);
  switch (value.size()) {
    case 0:
      return {};
    case 1:
      return {dims[0]};
    case 2:
      return {dims[0], dims[1]};
    case 3:
      return {dims[0], dims[1], dims[2]};
    default:
      return {dims[0], dims[1], dims[2], dims[3]};
  }
}

// Bytes of a tensor, or nothing when they do not fit 63 bits (also if a later dimension is 0).
std::optional<int64_t> bytes_of(const Shape& shape, DType dtype) {
  int64_t bytes = dtype_bytes(dtype);
  for (int i = 0; i < shape.rank(); ++i) {
    if (__builtin_mul_overflow(bytes, shape[i], &bytes)) return std::nullopt;
  }
  return bytes;
}

// Offsets stay relative to the first byte of data here.
Entry parse_entry(const std::string& name, const Json& info, const Place& place,
                  int64_t data_bytes) {
  if (!info.is_object()) place.fail(str("is ", info.dump(), "; allowed: an object"));
  for (const auto& item : info.items()) {
    if (item.key() != "dtype" && item.key() != "shape" && item.key() != "data_offsets") {
      place.fail(str("key \"", item.key(), "\"; allowed: dtype, shape, data_offsets"));
    }
  }
  Entry entry{.name = name,
              .dtype = parse_dtype(member(info, "dtype", place), place),
              .shape = parse_shape(member(info, "shape", place), place)};
  const Json& offsets = member(info, "data_offsets", place);
  if (!offsets.is_array() || offsets.size() != 2) {
    place.fail(str("data_offsets is ", offsets.dump(), "; allowed: [begin, end]"));
  }
  const int64_t begin = parse_size(offsets[0], "data_offsets", place);
  const int64_t end = parse_size(offsets[1], "data_offsets", place);
  if (begin > end || end > data_bytes) {
    place.fail(str("data_offsets [", begin, ", ", end, "]; allowed: ascending, up to the ",
                   data_bytes, " bytes of data that the file has"));
  }
  const std::optional<int64_t> bytes = bytes_of(entry.shape, entry.dtype);
  if (!bytes) place.fail(str("shape ", entry.shape, " has more bytes than 64 bits can count"));
  if (*bytes != end - begin) {
    place.fail(str("data_offsets [", begin, ", ", end, "] hold ", end - begin, " bytes, shape ",
                   entry.shape, " of ", format_name(entry.dtype), " needs ", *bytes));
  }
  entry.offset_bytes = begin;
  return entry;
}

Metadata parse_metadata(const std::string& path, const Json& value) {
  const std::string name = "__metadata__";
  const Place place{path, name};
  if (!value.is_object()) place.fail(str("is ", value.dump(), "; allowed: an object of texts"));
  Metadata metadata;
  for (const auto& item : value.items()) {
    if (!item.value().is_string()) {
      place.fail(str("\"", item.key(), "\" is ", item.value().dump(), "; allowed: a text"));
    }
    metadata.emplace(item.key(), item.value().get<std::string>());
  }
  return metadata;
}

void check_contiguous(const std::string& path, const std::vector<Entry>& entries,
                      int64_t data_bytes) {
  int64_t end = 0;
  for (const Entry& entry : entries) {
    if (entry.offset_bytes != end) {
      Place{path, entry.name}.fail(str("begins at byte ", entry.offset_bytes,
                                       " of the data; expected: ", end, ", where ",
                                       end == 0 ? "the data begins" : "the tensor before it ends"));
    }
    end += entry.bytes();
  }
  if (end != data_bytes) {
    throw DataError(str("checkpoint file \"", path, "\": has ", data_bytes,
                        " bytes of data, its tensors end at ", end));
  }
}

}  // namespace

std::string header_text(const std::vector<NamedTensor>& tensors, const Metadata& metadata) {
  std::string text = "{";
  if (!metadata.empty()) text += str("\"__metadata__\":", Json(metadata).dump(), ",");
  int64_t offset = 0;
  for (const NamedTensor& tensor : tensors) {
    const Shape& shape = tensor.values.shape();
    std::string dims;
    for (int i = 0; i < shape.rank(); ++i) dims += str(i == 0 ? "" : ",", shape[i]);
    const int64_t end = offset + tensor.values.bytes();
    text += str(quoted(tensor.name), ":{\"dtype\":\"", format_name(tensor.values.dtype()),
                "\",\"shape\":[", dims, "],\"data_offsets\":[", offset, ",", end, "]},");
    offset = end;
  }
  if (text.back() == ',') text.pop_back();
  return text + "}";
}

Header parse_header(const std::string& path, std::string_view text, int64_t data_begin,
                    int64_t file_bytes) {
  const Json json = parse_json<Json>(path, text);
  Header header;
  for (const auto& item : json.items()) {
    if (item.key() == "__metadata__") {
      header.metadata = parse_metadata(path, item.value());
    } else {
      const Place place{path, item.key()};
      header.entries.push_back(
          parse_entry(item.key(), item.value(), place, file_bytes - data_begin));
    }
  }
  // Empty tensors come before the one that begins where they do.
  std::sort(header.entries.begin(), header.entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.offset_bytes, a.bytes()) < std::pair(b.offset_bytes, b.bytes());
  });
  check_contiguous(path, header.entries, file_bytes - data_begin);
  for (Entry& entry : header.entries) entry.offset_bytes += data_begin;
  return header;
}

}  // namespace spillway::checkpoint
