// The buffers in which the stack of layers computes.
#pragma once

#include "core/arena.h"
#include "model/batch.h"
#include "model/layers/moe.h"
#include "model/layers/stack_weights.h"
#include "model/spec/spec.h"
#include "ops/ops.h"

namespace packhorse {

/// What batches with adapters need besides. I is the inner size of feed-forward blocks.
struct AdaptedBuffers {
  float* workspace = nullptr;        // LoraArgs::workspace, of any layer
  TensorView sums;                   // [T, I], or [T, 2 I] of gate and up
  TensorView inner;                  // [T, I]
  void* linear_workspace = nullptr;  // for the two layers of a feed-forward block
};

/// The buffers of the stack. T is max_tokens and E the hidden size. Buffers whose lifetimes do not
/// overlap share memory; those that a spec does not need are empty.
struct LayerBuffers {
  TensorView hidden;          // [T, E]
  TensorView normed;          // [T, E] normalised input of a pre-norm block
  Float8Rows quantized;       // [T, E] input of a block whose first layer is kFloat8
  TensorView rotation;        // [T, Ops::rotation_columns] float32
  TensorView local_rotation;  // the same for layers with a window
  /// [T, width * E], the input of the convolution; kept until the first layer is done.
  TensorView unfolded;
  void* convolution_workspace = nullptr;
  TensorView qkv;      // [T, (H + 2 Hkv) d], used inside attention blocks
  TensorView latents;  // [T, (H + 2 Hkv) d] of which compressed attention makes `qkv`
  void* cca_workspace_bytes = nullptr;
  TensorView context;  // [T, H d], used inside attention blocks
  void* attention_workspace = nullptr;
  void* linear_workspace = nullptr;        // for the dense layers before and after attention
  void* feed_forward_workspace = nullptr;  // used inside feed-forward blocks
  MoeBuffers moe;                          // instead of it
  AdaptedBuffers adapted;
};

/// Takes the buffers that live through all layers. After it, `take_block_buffers` takes those that
/// live inside a block, whose memory other buffers may use before the first layer and after the
/// last.
LayerBuffers take_layer_buffers(const Spec& spec, const StackWeights& weights,
                                const Capacity& capacity, DType dtype, const Ops& ops,
                                Arena& arena);
void take_block_buffers(const Spec& spec, const StackWeights& weights, const Capacity& capacity,
                        const Ops& ops, Arena& arena, LayerBuffers& buffers);

}  // namespace packhorse
