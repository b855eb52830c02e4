#include "weight_source.h"

#include <algorithm>
#include <charconv>

#include "file_errors.h"
#include "spillway/model/decoder.h"

namespace spillway::checkpoint {
namespace {

using Entry = SafetensorsFile::Entry;

Shape transposed(const Shape& shape) { return {shape[0], shape[2], shape[1]}; }

// The number of "model.layers.N.<end>", or -1.
int64_t layer_of(std::string_view name, std::string_view end) {
  constexpr std::string_view kBegin = "model.layers.";
  if (!name.starts_with(kBegin) || !name.ends_with(end)) return -1;
  int64_t layer = -1;
  const char* const last = name.data() + name.size() - end.size();
  const auto [rest, error] = std::from_chars(name.data() + kBegin.size(), last, layer);
  return error == std::errc() && rest == last ? layer : -1;
}

// from [b,a] -> to [a,b], by tiles that fit the caches.
void transpose(const Tensor& from, Tensor& to) {
  constexpr int64_t kTile = 32;
  const int64_t rows = from.dim(0), cols = from.dim(1);
  visit_float(from.dtype(), [&]<typename T>() {
    const T* const in = from.data<T>();
    T* const out = to.data<T>();
    for (int64_t row0 = 0; row0 < rows; row0 += kTile) {
      for (int64_t col0 = 0; col0 < cols; col0 += kTile) {
        for (int64_t col = col0; col < std::min(cols, col0 + kTile); ++col) {
          for (int64_t row = row0; row < std::min(rows, row0 + kTile); ++row) {
            out[col * rows + row] = in[row * cols + col];
          }
        }
      }
    }
  });
}

}  // namespace

WeightSource::WeightSource(const std::string& where, const Files& files,
                           const model::DecoderConfig& config,
                           const std::vector<NamedTensor>& buffers, std::optional<DType> dtype) {
  std::vector<FileTensor> wanted = file_tensors(config, family_of(config));
  for (const NamedTensor& buffer : buffers) {
    FileTensor tensor{
        .name = buffer.name, .parameter = buffer.name, .shape = buffer.values.shape()};
    targets_.emplace(buffer.name, Target{tensor, true});
    wanted.push_back(std::move(tensor));
  }
  const auto accept = [this](const std::vector<FileTensor>& tensors) {
    for (const FileTensor& tensor : tensors) targets_.try_emplace(tensor.name, Target{tensor});
  };
  accept(file_tensors(config, Family::kQwen3Moe));  // also those of OLMoE and DeepSeek
  accept(file_tensors(config, Family::kMixtral));
  accept(fused_tensors(config));
  for (const auto& file : files) {
    for (const Entry& entry : file->entries()) {
      const int64_t layer = layer_of(entry.name, ".eh_proj.weight");
      if (layer >= config.model.layers) extra_layers_.insert(str("model.layers.", layer, "."));
    }
  }
  for (const auto& file : files) {
    for (const Entry& entry : file->entries()) take(*file, entry, dtype);
  }
  check_complete(where, wanted);
}

bool WeightSource::passed_over(const std::string& name) const {
  if (name.ends_with(".rotary_emb.inv_freq")) return true;
  return std::any_of(extra_layers_.begin(), extra_layers_.end(),
                     [&](const std::string& prefix) { return name.starts_with(prefix); });
}

void WeightSource::take(const SafetensorsFile& file, const Entry& entry,
                        std::optional<DType> dtype) {
  const auto it = targets_.find(entry.name);
  if (it == targets_.end()) {
    if (passed_over(entry.name)) return;
    fail_tensor(file.path(), entry.name,
                str("shape ", entry.shape, "; the model has no such tensor"));
  }
  const auto& [target, buffer] = it->second;
  const bool fused_experts = target.shape.rank() == 3;
  const bool swapped = fused_experts && entry.shape == transposed(target.shape);
  if (swapped && entry.shape == target.shape) {
    fail_tensor(file.path(), entry.name,
                str("shape ", entry.shape,
                    " is the same for rows of outputs and of inputs; "
                    "give it one expert a tensor"));
  }
  if (entry.shape != target.shape && !swapped) {
    fail_tensor(file.path(), entry.name,
                str("shape ", entry.shape, "; the model has ", target.shape));
  }
  if (dtype && entry.dtype != (buffer ? DType::kF32 : *dtype)) {
    fail_tensor(file.path(), entry.name,
                str("dtype ", dtype_name(entry.dtype), "; the model has ",
                    dtype_name(buffer ? DType::kF32 : *dtype)));
  }
  if (entry.dtype == DType::kI32 || entry.dtype == DType::kI64) {
    fail_tensor(file.path(), entry.name,
                str("dtype ", dtype_name(entry.dtype), "; allowed: f32, f64, bf16"));
  }
  found_[target.parameter].push_back({&file, &entry, target.begin, swapped});
}

void WeightSource::check_complete(const std::string& where, const std::vector<FileTensor>& wanted) {
  for (auto& [parameter, runs] : found_) {
    std::sort(runs.begin(), runs.end(),
              [](const Found& a, const Found& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < runs.size(); ++i) {
      const Found &a = runs[i - 1], &b = runs[i];
      if (b.begin >= a.begin + a.entry->shape.numel()) continue;
      fail_tensor(b.file->path(), b.entry->name,
                  str("gives elements that tensor \"", a.entry->name, "\" of \"", a.file->path(),
                      "\" gives already"));
    }
  }
  // Runs do not overlap, and every wanted tensor lies within one run or is missing.
  for (const FileTensor& tensor : wanted) {
    const std::vector<Found>& runs = found_[tensor.parameter];
    const bool given = std::any_of(runs.begin(), runs.end(), [&](const Found& run) {
      return run.begin <= tensor.begin && tensor.begin < run.begin + run.entry->shape.numel();
    });
    if (given) continue;
    throw DataError(str("checkpoint \"", where, "\": tensor \"", tensor.name, "\" is missing; the ",
                        "model has it with shape ", tensor.shape));
  }
}

void WeightSource::copy(Context& ctx, const std::string& parameter, int64_t first,
                        Tensor& to) const {
  const int64_t end = first + to.numel();
  for (const Found& run : found_.at(parameter)) {
    const int64_t from = std::max(first, run.begin);
    const int64_t until = std::min(end, run.begin + run.entry->shape.numel());
    if (from >= until) continue;
    if (!run.transposed) {
      Tensor part = to.slice(from - first, {until - from});
      run.file->read(ctx, *run.entry, from - run.begin, part);
      continue;
    }
    // A rank holds whole experts.
    const Shape matrix{run.entry->shape[1], run.entry->shape[2]};
    Tensor expert = Tensor::empty(ctx, matrix, to.dtype(), Purpose::kWorkspace);
    for (int64_t begin = from; begin < until; begin += matrix.numel()) {
      run.file->read(ctx, *run.entry, begin - run.begin, expert);
      Tensor part = to.slice(begin - first, {matrix[1], matrix[0]});
      transpose(expert, part);
    }
  }
}

void WeightSource::fill(Context& ctx, ExpertSlice slice, nn::ParameterStore& store,
                        const std::vector<NamedTensor>& buffers) const {
  for (nn::Parameter& parameter : store.all()) {
    const bool expert = parameter.spec.sync == nn::SyncGroup::kExpert;
    copy(ctx, parameter.spec.name, expert ? slice.ep_rank * parameter.value.numel() : 0,
         parameter.value);
  }
  for (NamedTensor buffer : buffers) copy(ctx, buffer.name, 0, buffer.values);
}

}  // namespace spillway::checkpoint
