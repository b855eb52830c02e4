#pragma once
// Moments and masters in files: f32 tensors of one dimension, each a run of elements of a parameter
// of the WHOLE model, so that any world, ep and zero can read what any other has written. A
// tensor's name is FIELD/PARAMETER/SHAPE/BEGIN:
//
//   m/model.layers.0.mlp.experts.gate_up_proj/16x512x256/1048576
//
// FIELD is m, v or, for a model that is not f32 (whose values are the masters), master; SHAPE that
// of the parameter in the whole model; BEGIN the run's first element in it, row-major.

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/checkpoint/checkpoint.h"
#include "weight_source.h"

namespace spillway::checkpoint {

/// What this rank writes: its primary pieces.
std::vector<NamedTensor> optimizer_tensors(const Parts& parts);

/// The runs of all files. The constructor judges that they are those of the model and together give
/// every element of every field once.
class OptimizerSource {
 public:
  /// `where` stands for the files in errors. Throws DataError.
  OptimizerSource(const std::string& where, const Files& files,
                  const std::vector<nn::ParameterSpec>& specs);

  /// Fills every piece that this rank holds, primary or not.
  void fill(Context& ctx, const Parts& parts) const;

 private:
  struct Run {
    const SafetensorsFile* file;
    const SafetensorsFile::Entry* entry;
    int64_t begin, end;
  };
  using Key = std::pair<std::string, std::string>;  // field, parameter

  void take(const SafetensorsFile& file, const SafetensorsFile::Entry& entry);
  void check_complete(const std::string& where) const;
  void copy(Context& ctx, const Key& key, int64_t first, Tensor& to) const;

  struct Wanted {
    std::string shape;  // as names have it
    int64_t numel;
    std::vector<Run> runs;  // sorted by begin
  };
  std::map<Key, Wanted> wanted_;
};

}  // namespace spillway::checkpoint
