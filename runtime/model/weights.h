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
  NormWeight attention_norm;  // none in the first layer of some pre-norm models
  TensorView position_keys;   // [num_relative, H d], of disentangled attention: made at load
  TensorView position_queries;
  NormWeight query_norm;  // of each head; where the spec has qk_norm
  NormWeight key_norm;
  LinearWeight up;  // with the gate, where the spec has one: see FeedForwardArgs
  LinearWeight down;
  NormWeight feed_forward_norm;
};

/// Of a DenseSpec.
struct DenseWeights {
  LinearWeight layer;
  std::optional<LinearWeight> residual;  // of its input, where the sizes differ
};

struct ModelWeights {
  TensorView word_table;
  TensorView position_table;
  TensorView type_table;
  NormWeight embedding_norm;
  std::optional<LinearWeight> embedding_projection;
  std::vector<LayerWeights> layers;  // distinct ones: spec.layer_weights says which runs when
  std::optional<LinearWeight> convolution;  // [E, width * E]
  NormWeight convolution_norm;
  NormWeight final_norm;  // of pre-norm models
  ScoreTerm score_term;
  const float* rope_frequencies = nullptr;        // [dims / 2]
  const float* local_rope_frequencies = nullptr;  // likewise, of layers with a window
  std::optional<LinearWeight> pooler;
  std::optional<LinearWeight> classifier_dense;  // [E, E]
  NormWeight classifier_norm;
  // From here on out_features are padded_features.
  std::optional<LinearWeight> classifier;         // [num_labels, E]
  std::optional<LinearWeight> token_weights;      // [1, E]
  std::vector<DenseWeights> vectors;              // of the spec's layers
  std::vector<DenseWeights> embedding_dense;      // likewise
  std::optional<LinearWeight> masked_lm_decoder;  // [vocab_size, embedding_size]
  std::optional<LinearWeight> masked_lm_dense;    // [embedding_size, E], not padded
  NormWeight masked_lm_norm;

  std::unique_ptr<DeviceMemory> memory;
  PlannedAllocation plan;
};

/// Size of one head as stored: zero-padded to what the device's kernels want.
int64_t padded_head_dim(const Spec& spec, const Ops& ops);

/// Width of the feed-forward block as stored: zero-padded to blocks of a gate, or to what the
/// device's kernels want.
int64_t padded_intermediate_size(const Spec& spec, const Ops& ops);

/// Features of a head as stored: padded with zeros to what the device's kernels want.
int64_t padded_features(int64_t features, const Ops& ops);

/// Columns as stored of what enters the first of these layers, `size`, and of what leaves each:
/// padded_features, but for what is added to the layer's input.
std::vector<int64_t> dense_columns(int64_t size, const std::vector<DenseSpec>& layers,
                                   const Ops& ops);

/// What the weights will take, without reading any. Throws RuntimeError naming what the spec asks
/// for and the device lacks.
PlannedAllocation plan_weights(const Spec& spec, DType dtype, Ops& ops);

/// Reads, checks and packs the weights (names and shapes: docs/weights.md). Throws InvalidArgument
/// naming the tensor that is missing, of another shape, or holds NaN or Inf.
std::shared_ptr<const ModelWeights> load_weights(const Spec& spec, DType dtype, Ops& ops,
                                                 const PlannedAllocation& plan,
                                                 const WeightSource& source);

}  // namespace packhorse
