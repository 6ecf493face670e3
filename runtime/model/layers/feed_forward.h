// The dense feed-forward block: down(activation(up(x))), or down(activation(gate(x)) * up(x)).
#pragma once

#include "core/arena.h"
#include "model/batch.h"
#include "model/loading/layer_packer.h"
#include "model/spec/spec.h"
#include "ops/ops.h"

namespace packhorse {

struct Block;
struct LayerBuffers;
struct StackLoad;
struct StackRun;
struct StackWeights;

struct FeedForwardWeights {
  LinearWeight up;  // includes the gate if the spec has one, see FeedForwardArgs
  LinearWeight down;
  float inner_scale = 0;  // FeedForwardArgs::inner_scale, where both are kFloat8
};

/// Buffers that batches with adapters need besides. I is the largest inner size of a block.
struct AdaptedFeedForwardBuffers {
  TensorView sums;                   // [T, I], or [T, 2 I] of gate and up
  TensorView inner;                  // [T, I]
  void* linear_workspace = nullptr;  // for the two layers of the block
};

struct FeedForwardBuffers {
  void* workspace = nullptr;
  AdaptedFeedForwardBuffers adapted;
};

// Layouts of the dense layers in set `set` of weights.
DenseLayout up_layout(const StackSpec& stack, const FeedForwardSpec& spec,
                      const LayerPacker& packer, int64_t set);
DenseLayout down_layout(const StackSpec& stack, const FeedForwardSpec& spec,
                        const LayerPacker& packer, int64_t set);
/// Columns between the two layers of a block, as stored.
int64_t padded_inner(int64_t size, bool gated, const LayerPacker& packer);

FeedForwardWeights build_feed_forward(const StackLoad& load, const FeedForwardSpec& spec,
                                      int64_t set);

/// Takes the buffers for the blocks of all layers.
void take_feed_forward(const StackSpec& spec, const StackWeights& weights, const Capacity& capacity,
                       const Ops& ops, Arena& arena, LayerBuffers& buffers);

/// Adds what the block gives to the hidden state.
void add(const StackRun& run, const Block& block, const FeedForwardWeights& weights);

}  // namespace packhorse
