// The weights of the stack of layers.
#pragma once

#include <optional>
#include <vector>

#include "model/layers/cca.h"
#include "model/layers/moe.h"
#include "model/loading/layer_packer.h"
#include "model/spec/spec.h"
#include "ops/args.h"

namespace packhorse {

struct AttentionWeights {
  /// Query, key and value in one layer: [(num_heads + 2 num_kv_heads) head_dim, E].
  LinearWeight qkv;
  LinearWeight output;                     // [E, num_heads * head_dim]
  NormWeight query_norm;                   // of each head, if the spec has qk_norm
  NormWeight key_norm;                     // the same
  std::optional<CcaWeights> convolutions;  // of compressed attention
  TensorView position_keys;  // [num_relative, H d], computed at load for disentangled attention
  TensorView position_queries;
  float context_scale = 0;  // AttentionArgs::out_scale, where `output` is kFloat8
};

struct FeedForwardWeights {
  LinearWeight up;  // includes the gate if the spec has one, see FeedForwardArgs
  LinearWeight down;
  float inner_scale = 0;  // FeedForwardArgs::inner_scale, where both are kFloat8
};

/// As AddScaledArgs has them; null where residuals are not scaled.
struct ResidualScales {
  const float* output_shift = nullptr;
  const float* output_scale = nullptr;
  const float* residual_shift = nullptr;
  const float* residual_scale = nullptr;
};

struct LayerWeights {
  AttentionWeights attention;
  NormWeight attention_output_norm;  // if StackSpec::output_norms, and so feed_forward_output_norm
  NormWeight feed_forward_output_norm;
  NormWeight attention_norm;  // none in the first layer of some pre-norm models
  FeedForwardWeights feed_forward;
  std::optional<MoeWeights> moe;  // instead of feed_forward
  NormWeight feed_forward_norm;
  ResidualScales attention_scales;
  ResidualScales feed_forward_scales;
};

struct StackWeights {
  /// Whether the first layers of blocks are kFloat8, and so take Float8Rows.
  bool float8() const {
    return !layers.empty() && layers.front().attention.qkv.dtype == DType::kFloat8;
  }

  std::vector<LayerWeights> layers;  // one for each set of weights, see StackSpec::layer_weights
  int64_t width = 0;                 // columns of the hidden state, as stored
  int64_t head_dim = 0;              // as stored, padded with zeros to what the device needs
  std::optional<LinearWeight> convolution;  // [E, width of the convolution * E]
  NormWeight convolution_norm;
  NormWeight final_norm;  // only in pre-norm models
  ResidualScales scales;  // of the embeddings, which have no residual
  ScoreTerm score_term;
  const float* rope_frequencies = nullptr;        // [dims / 2]
  const float* local_rope_frequencies = nullptr;  // the same for layers with a window
};

StackWeights build_stack(const Spec& spec, LayerPacker& packer);

}  // namespace packhorse
