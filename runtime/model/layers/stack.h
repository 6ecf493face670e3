// A stack of layers: the weights and the buffers of its blocks, and of what they share.
#pragma once

#include <optional>
#include <variant>
#include <vector>

#include "core/arena.h"
#include "model/batch.h"
#include "model/layers/cca.h"
#include "model/layers/convolution.h"
#include "model/layers/cross_attention.h"
#include "model/layers/feed_forward.h"
#include "model/layers/moe.h"
#include "model/layers/self_attention.h"
#include "model/spec/spec.h"
#include "ops/ops.h"

namespace packhorse {

/// Factors and shifts as AddScaledArgs has them; null where residuals are not scaled.
struct ResidualScales {
  const float* output_shift = nullptr;
  const float* output_scale = nullptr;
  const float* residual_shift = nullptr;
  const float* residual_scale = nullptr;
};

struct BlockWeights {
  std::variant<SelfAttentionWeights, CrossAttentionWeights, CcaWeights, FeedForwardWeights,
               MoeWeights>
      kind;
  ResidualScales scales;
  NormWeight norm;         // before the block, or after it in post-norm models; or none
  NormWeight output_norm;  // if StackSpec::output_norms
};

/// The attention of a block to its own stack, or null if it has none.
inline const SelfAttentionWeights* attention_of(const BlockWeights& block) {
  const auto* cca = std::get_if<CcaWeights>(&block.kind);
  return cca != nullptr ? &cca->attention : std::get_if<SelfAttentionWeights>(&block.kind);
}

struct LayerWeights {
  std::vector<BlockWeights> blocks;  // as LayerSpec::blocks
};

struct StackWeights {
  std::vector<LayerWeights> layers;  // one for each set of weights, see LayerSpec::weights
  int64_t width = 0;                 // columns of the hidden state, as stored
  int64_t head_dim = 0;              // as stored, padded with zeros to what the device needs
  bool float8 = false;  // whether the first layers of blocks are kFloat8, and so take Float8Rows
  std::optional<ConvolutionWeights> convolution;
  NormWeight final_norm;  // only in pre-norm models
  ResidualScales scales;  // scales of the embeddings, which have no residual
  ScoreTerm score_term;
  std::vector<const float*> rope_frequencies;  // [dims / 2] of each of StackSpec::ropes
};

/// `source`: the stack that this one attends to, or null.
StackWeights build_stack(const StackSpec& spec, LayerPacker& packer,
                         const StackSpec* source = nullptr);

/// The buffers of the stack. T is max_tokens and E the hidden size. Buffers whose lifetimes do not
/// overlap share memory; those that a spec does not need are empty.
struct LayerBuffers {
  TensorView hidden;                  // [T, E]
  TensorView normed;                  // [T, E] normalised input of a pre-norm block
  Float8Rows quantized;               // [T, E] input of a block whose first layer is kFloat8
  std::vector<TensorView> rotations;  // one for each of StackSpec::ropes
  ConvolutionBuffers convolution;
  float* adapted_ranks = nullptr;  // LoraArgs::workspace, of any layer
  // Used inside blocks of one kind, which all layers share.
  SelfAttentionBuffers attention;
  CrossAttentionBuffers cross;
  CcaBuffers cca;
  FeedForwardBuffers feed_forward;
  MoeBuffers moe;
};

/// Takes the buffers that live through all layers. After it, `take_block_buffers` takes those that
/// live inside a block, whose memory other buffers may use before the first layer and after the
/// last.
LayerBuffers take_layer_buffers(const StackSpec& spec, const StackWeights& weights,
                                const Capacity& capacity, DType dtype, const Ops& ops,
                                Arena& arena);
void take_block_buffers(const StackSpec& stack, const StackWeights& weights,
                        const Capacity& capacity, const Ops& ops, Arena& arena,
                        LayerBuffers& buffers);

}  // namespace packhorse
