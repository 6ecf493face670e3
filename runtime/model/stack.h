// The layers, written once over the ops.
#pragma once

#include "core/arena.h"
#include "model/batch.h"
#include "model/key_source.h"
#include "model/spec.h"
#include "model/stack_weights.h"
#include "ops/ops.h"

namespace packhorse {

/// T = max_tokens, E = hidden size. Buffers whose lifetimes are apart share bytes; those that a
/// spec has no use for are empty.
struct LayerBuffers {
  TensorView hidden;          // [T, E]
  TensorView normed;          // [T, E] what a pre-norm block computes from
  TensorView rotation;        // [T, Ops::rotation_columns] float32
  TensorView local_rotation;  // likewise, of layers with a window
  TensorView neighbours;  // [T, width E] input of the convolution; until the first layer is done
  void* convolution_workspace = nullptr;
  TensorView qkv;      // [T, (H + 2 Hkv) d]; used inside attention blocks
  TensorView context;  // [T, H d]; likewise
  void* attention_workspace = nullptr;
  void* linear_workspace = nullptr;        // of the dense layers around attention
  void* feed_forward_workspace = nullptr;  // used inside feed-forward blocks
};

/// Takes what lives through all layers; then `take_block_buffers` what lives inside of a block,
/// whose bytes others may use before the first layer and after the last.
LayerBuffers take_layer_buffers(const Spec& spec, const StackWeights& weights,
                                const Capacity& capacity, DType dtype, const Ops& ops,
                                Arena& arena);
void take_block_buffers(const Spec& spec, const StackWeights& weights, const Capacity& capacity,
                        const Ops& ops, Arena& arena, LayerBuffers& buffers);

/// One batch on its way through the layers.
class Stack {
 public:
  /// The arguments outlive the object.
  Stack(const StackSpec& spec, const StackWeights& weights, const LayerBuffers& buffers, Ops& ops)
      : spec_(spec), weights_(weights), buffers_(buffers), ops_(ops) {}

  /// Turns the first T rows of `hidden` from embeddings into the last hidden state.
  /// `before_layer`, where not null, is called before each layer and may throw.
  void run(const TokenBatch& tokens, KeySource& keys, void (*before_layer)() = nullptr) const;

 private:
  void rotate(const TokenBatch& tokens, const float* frequencies, const TensorView& out) const;
  TensorView block_input(const NormWeight& norm, const BatchView& batch) const;
  void attention_block(const LayerWeights& layer, size_t index, const BatchView& batch,
                       KeySource& keys) const;
  void project_heads(const LayerWeights& layer, bool local, const AttentionArgs& attention) const;
  void feed_forward_block(const LayerWeights& layer, const BatchView& batch) const;
  void convolve(const BatchView& batch) const;

  const StackSpec& spec_;
  const StackWeights& weights_;
  const LayerBuffers& buffers_;
  Ops& ops_;
};

}  // namespace packhorse
