#pragma once
// Weights in safetensors files, found for the parameters of a model.

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "spillway/checkpoint/load_weights.h"
#include "spillway/checkpoint/tensor_names.h"

namespace spillway::checkpoint {

using Files = std::vector<std::unique_ptr<SafetensorsFile>>;

/// The files of weights of a folder: model.safetensors, or those of model.safetensors.index.json,
/// which must hold exactly the tensors that it says. Throws DataError.
Files open_weight_files(const std::string& folder);

/// All tensors of some files against all parameters and buffers of a model. The constructor judges
/// names, shapes, dtypes and that every element is given exactly once; nothing can be missing
/// later.
class WeightSource {
 public:
  /// `where` stands for the files in errors. `dtype`: the only one that parameters may have in the
  /// files (buffers: f32); none: every floating one is converted. Keeps references to `files`.
  WeightSource(const std::string& where, const Files& files, const model::DecoderConfig& config,
               const std::vector<NamedTensor>& buffers, std::optional<DType> dtype);

  /// Fills the parameters that a rank holds, and the buffers.
  void fill(Context& ctx, ExpertSlice slice, nn::ParameterStore& store,
            const std::vector<NamedTensor>& buffers) const;

 private:
  struct Target {
    FileTensor tensor;
    bool buffer = false;
  };
  struct Found {
    const SafetensorsFile* file;
    const SafetensorsFile::Entry* entry;
    int64_t begin;    // first element of the parameter
    bool transposed;  // [E,b,a] in the file, [E,a,b] in the parameter
  };

  void take(const SafetensorsFile& file, const SafetensorsFile::Entry& entry,
            std::optional<DType> dtype);
  bool passed_over(const std::string& name) const;
  void check_complete(const std::string& where, const std::vector<FileTensor>& wanted);
  void copy(Context& ctx, const std::string& parameter, int64_t first, Tensor& to) const;

  std::unordered_map<std::string, Target> targets_;  // by name in a file
  std::set<std::string> extra_layers_;  // "model.layers.61.", for multi-token prediction
  std::unordered_map<std::string, std::vector<Found>> found_;  // by parameter, sorted by begin
};

}  // namespace spillway::checkpoint
