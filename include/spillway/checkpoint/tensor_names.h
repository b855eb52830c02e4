#pragma once
// Our parameters under the names that transformers gives them on disk. Its files hold one tensor an
// expert and projection; ours are fused. Every tensor of a file is therefore a contiguous run of
// elements of one parameter of the whole model.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/model/config.h"
#include "spillway/tensor/shape.h"

namespace spillway::checkpoint {

/// Whose names, and whose config.json, a model's checkpoints have.
enum class Family {
  kQwen3Moe,  ///< norms of queries and keys per head
  kOlmoe,     ///< norms over the whole projection
  kMixtral,   ///< no such norms: block_sparse_moe, w1, w3, w2
  kDeepseek,  ///< DeepSeek-V3's names: shared experts, dense layers, selection bias, other scores
};
/// A model without experts, shared experts, dense layers (but in Qwen3-MoE's, which has them) and
/// every router but a plain softmax make it kDeepseek; else the norms of queries and keys decide.
Family family_of(const model::DecoderConfig& config);
std::string_view family_name(Family family);

/// One tensor of a file.
struct FileTensor {
  std::string name;       ///< in the file; experts by their global id
  std::string parameter;  ///< the name of model::parameter_specs
  int64_t begin = 0;      ///< its first element in the parameter of the whole model
  Shape shape;
  int64_t expert = -1;  ///< the global id; -1: not of a single expert
};

/// Every tensor that a checkpoint of the family holds for this model, in the order of the
/// parameters. Together they are every element of every parameter, once.
std::vector<FileTensor> file_tensors(const model::DecoderConfig& config, Family family);

/// What the reader takes beside them, whatever the family: parameters whole and under their own
/// names (fused experts [E,2I,H] and [E,H,I], as transformers 5 holds them in memory).
std::vector<FileTensor> fused_tensors(const model::DecoderConfig& config);

}  // namespace spillway::checkpoint
