#include "optimizer_state.h"

#include <algorithm>
#include <charconv>

#include "file_errors.h"

namespace spillway::checkpoint {
namespace {

using Entry = SafetensorsFile::Entry;

std::string shape_text(const Shape& shape) {
  std::string text;
  for (int i = 0; i < shape.rank(); ++i) text += str(i == 0 ? "" : "x", shape[i]);
  return text;
}

std::vector<std::string> fields_of(DType dtype) {
  std::vector<std::string> fields{"m", "v"};
  if (dtype != DType::kF32) fields.emplace_back("master");
  return fields;
}

const Tensor& field_of(const optim::StatePiece& piece, const std::string& field) {
  return field == "m" ? piece.m : field == "v" ? piece.v : piece.master;
}

/// Index in the whole model's parameter of the piece's first element. Experts, dimension 0, are
/// what ep splits.
int64_t global_begin(const optim::StatePiece& piece, int64_t ep_rank) {
  const bool expert = piece.parameter->spec.sync == nn::SyncGroup::kExpert;
  return piece.begin + (expert ? ep_rank * piece.parameter->value.numel() : 0);
}

}  // namespace

std::vector<NamedTensor> optimizer_tensors(const Parts& parts) {
  std::vector<NamedTensor> tensors;
  for (const optim::StatePiece& piece : parts.optimizer.pieces()) {
    if (!piece.primary || piece.count == 0) continue;
    const nn::ParameterSpec& spec = piece.parameter->spec;
    for (const std::string& field : fields_of(spec.dtype)) {
      tensors.push_back({str(field, "/", spec.name, "/", shape_text(spec.shape), "/",
                             global_begin(piece, parts.topology.ep_rank())),
                         field_of(piece, field)});
    }
  }
  return tensors;
}

OptimizerSource::OptimizerSource(const std::string& where, const Files& files,
                                 const std::vector<nn::ParameterSpec>& specs) {
  for (const nn::ParameterSpec& spec : specs) {
    for (const std::string& field : fields_of(spec.dtype)) {
      wanted_[{field, spec.name}] = {shape_text(spec.shape), spec.shape.numel(), {}};
    }
  }
  for (const auto& file : files) {
    for (const Entry& entry : file->entries()) take(*file, entry);
  }
  for (auto& [key, wanted] : wanted_) {
    std::sort(wanted.runs.begin(), wanted.runs.end(),
              [](const Run& a, const Run& b) { return a.begin < b.begin; });
  }
  check_complete(where);
}

void OptimizerSource::take(const SafetensorsFile& file, const Entry& entry) {
  std::array<std::string, 4> parts;  // field, parameter, shape, begin
  std::string_view rest = entry.name;
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t end = i + 1 < parts.size() ? rest.find('/') : rest.size();
    if (end == std::string_view::npos)
      fail_tensor(file.path(), entry.name, "is not FIELD/PARAMETER/SHAPE/BEGIN");
    parts[i] = rest.substr(0, end);
    rest.remove_prefix(std::min(rest.size(), end + 1));
  }
  const auto it = wanted_.find({parts[0], parts[1]});
  if (it == wanted_.end()) {
    fail_tensor(file.path(), entry.name,
                str("the optimizer has no ", parts[0], " of a parameter ", parts[1]));
  }
  Wanted& wanted = it->second;
  if (parts[2] != wanted.shape) {
    fail_tensor(file.path(), entry.name, str("shape ", parts[2], "; the model has ", wanted.shape));
  }
  int64_t begin = -1;
  const char* const end = parts[3].data() + parts[3].size();
  const auto [last, error] = std::from_chars(parts[3].data(), end, begin);
  const int64_t count = entry.shape.numel();
  const bool fits = error == std::errc() && last == end && begin >= 0 && begin <= wanted.numel &&
                    count <= wanted.numel - begin;
  if (!fits || entry.shape.rank() != 1 || entry.dtype != DType::kF32) {
    fail_tensor(file.path(), entry.name,
                str("shape ", entry.shape, " of ", dtype_name(entry.dtype), " from element ",
                    parts[3], " on; allowed: one dimension of f32, up to element ", wanted.numel));
  }
  wanted.runs.push_back({&file, &entry, begin, begin + count});
}

void OptimizerSource::check_complete(const std::string& where) const {
  for (const auto& [key, wanted] : wanted_) {
    const auto fail_range = [&, &k = key](const char* what, int64_t begin, int64_t end) {
      throw DataError(str("checkpoint \"", where, "\": optimizer state ", k.first, " of ", k.second,
                          ": elements [", begin, ", ", end, ") are ", what));
    };
    int64_t next = 0;
    for (const Run& run : wanted.runs) {
      if (run.begin > next) fail_range("missing", next, run.begin);
      if (run.begin < next) fail_range("given twice", run.begin, std::min(next, run.end));
      next = run.end;
    }
    if (next < wanted.numel) fail_range("missing", next, wanted.numel);
  }
}

void OptimizerSource::copy(Context& ctx, const Key& key, int64_t first, Tensor& to) const {
  const std::vector<Run>& runs = wanted_.at(key).runs;
  const int64_t end = first + to.numel();
  auto run = std::upper_bound(runs.begin(), runs.end(), first,
                              [](int64_t element, const Run& r) { return element < r.end; });
  for (; run != runs.end() && run->begin < end; ++run) {
    const int64_t from = std::max(first, run->begin), until = std::min(end, run->end);
    Tensor part = to.slice(from - first, {until - from});
    run->file->read(ctx, *run->entry, from - run->begin, part);
  }
}

void OptimizerSource::fill(Context& ctx, const Parts& parts) const {
  for (const optim::StatePiece& piece : parts.optimizer.pieces()) {
    const nn::ParameterSpec& spec = piece.parameter->spec;
    const int64_t first = global_begin(piece, parts.topology.ep_rank());
    for (const std::string& field : fields_of(spec.dtype)) {
      Tensor to = field_of(piece, field);
      copy(ctx, {field, spec.name}, first, to);
    }
  }
}

}  // namespace spillway::checkpoint
