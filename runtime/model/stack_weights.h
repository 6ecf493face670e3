// The weights of the layers.
#pragma once

#include <optional>
#include <vector>

#include "model/layer_packer.h"
#include "model/spec.h"
#include "ops/args.h"

namespace packhorse {

struct AttentionWeights {
  LinearWeight qkv;       // query, key and value fused: [(num_heads + 2 num_kv_heads) head_dim, E]
  LinearWeight output;    // [E, num_heads * head_dim]
  NormWeight query_norm;  // of each head; where the spec has qk_norm
  NormWeight key_norm;    // likewise
  TensorView position_keys;  // [num_relative, H d], of disentangled attention: made at load
  TensorView position_queries;
};

struct FeedForwardWeights {
  LinearWeight up;  // with the gate, where the spec has one: see FeedForwardArgs
  LinearWeight down;
};

struct LayerWeights {
  AttentionWeights attention;
  NormWeight attention_norm;  // none in the first layer of some pre-norm models
  FeedForwardWeights feed_forward;
  NormWeight feed_forward_norm;
};

struct StackWeights {
  std::vector<LayerWeights> layers;  // distinct ones: StackSpec::layer_weights says which runs when
  int64_t width = 0;                 // columns of the hidden state, as stored
  int64_t head_dim = 0;              // as stored: zero-padded to what the device's kernels want
  std::optional<LinearWeight> convolution;  // [E, width of the convolution * E]
  NormWeight convolution_norm;
  NormWeight final_norm;  // of pre-norm models
  ScoreTerm score_term;
  const float* rope_frequencies = nullptr;        // [dims / 2]
  const float* local_rope_frequencies = nullptr;  // likewise, of layers with a window
};

StackWeights build_stack(const Spec& spec, LayerPacker& packer);

}  // namespace packhorse
