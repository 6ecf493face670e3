// The weights of one model on one device: typed views into a single allocation.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/arena.h"
#include "model/spec.h"
#include "ops/ops.h"
#include "packhorse/weight_source.h"

namespace packhorse {

struct LayerWeights {
  LinearWeight
      qkv;  // query, key and value fused: [(num_heads + 2 num_kv_heads) padded_head_dim, E]
  LinearWeight attention_output;
  NormWeight attention_norm;
  LinearWeight up;
  LinearWeight down;
  NormWeight feed_forward_norm;
};

struct ModelWeights {
  TensorView word_table;
  TensorView position_table;
  TensorView type_table;
  NormWeight embedding_norm;
  std::vector<LayerWeights> layers;
  std::optional<LinearWeight> pooler;

  std::unique_ptr<DeviceMemory> memory;
  PlannedAllocation plan;
};

/// Size of one head as stored: zero-padded to what the device's kernels want.
int64_t padded_head_dim(const Spec& spec, const Ops& ops);

/// What the weights will take, without reading any. Throws OutOfMemory over `limit` (bytes).
PlannedAllocation plan_weights(const Spec& spec, DType dtype, Ops& ops,
                               std::optional<size_t> limit);

/// Reads, checks and packs the weights (names and shapes: docs/weights.md). Throws InvalidArgument
/// naming the tensor that is missing, of another shape, or holds NaN or Inf.
std::shared_ptr<const ModelWeights> load_weights(const Spec& spec, DType dtype, Ops& ops,
                                                 const PlannedAllocation& plan,
                                                 const WeightSource& source);

}  // namespace packhorse
