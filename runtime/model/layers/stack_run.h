// The state that blocks share while a batch runs.
#pragma once

#include "model/batch.h"
#include "model/layers/key_source.h"
#include "model/layers/stack.h"
#include "model/loading/adapters.h"
#include "model/spec/spec.h"
#include "ops/ops.h"

namespace packhorse {

/// One block of one layer.
struct Block {
  size_t layer;  // index in StackSpec::layers
  size_t set;    // LayerSpec::weights
  const BlockSpec& spec;
  const BlockWeights& weights;
  bool read;  // whether another block reads the hidden state that this one leaves
};

struct StackRun {
  const StackSpec& spec;
  const StackWeights& weights;
  const LayerBuffers& buffers;
  const BatchView& batch;
  const int32_t* grids;  // TokenBatch::grids
  int64_t prefix;        // TokenBatch::prefix
  KeySource& keys;
  KeySource* source;             // keys and values that cross attention reads; null without it
  const AdapterBatch* adapters;  // or null
  Ops& ops;

  TensorView rows(const TensorView& buffer) const { return buffer.first_rows(batch.num_tokens); }
  TensorView hidden() const { return rows(buffers.hidden); }
  /// Sets the rotation of the heads of a block, if it has one.
  template <class Args>
  void set_rotation(Args& args, const AttentionSpec& attention) const {
    if (!attention.rope) return;
    args.rotation = rows(buffers.rotations[*attention.rope]);
    args.frequencies = weights.rope_frequencies[*attention.rope];
    args.dims = static_cast<int32_t>(spec.ropes[*attention.rope].dims);
    if constexpr (requires { args.grid; }) args.grid = spec.ropes[*attention.rope].grid;
  }
  Block block(size_t layer, size_t index) const {
    const LayerSpec& one = spec.layers[layer];
    const auto set = static_cast<size_t>(one.weights);
    const bool last = index + 1 == one.blocks.size();
    const bool convolved = layer == 0 && weights.convolution;
    return {.layer = layer,
            .set = set,
            .spec = one.blocks[index],
            .weights = weights.layers[set].blocks[index],
            .read = !last || (layer + 1 != spec.layers.size() && !convolved)};
  }
};

/// The blocks of each set of weights, for which buffers are planned.
inline std::vector<Block> blocks_of(const StackSpec& spec, const StackWeights& weights) {
  std::vector<Block> blocks;
  const std::vector<const LayerSpec*> layers = spec.weight_sets();
  for (size_t set = 0; set < layers.size(); ++set) {
    for (size_t i = 0; i < layers[set]->blocks.size(); ++i) {
      blocks.push_back({.layer = 0,
                        .set = set,
                        .spec = layers[set]->blocks[i],
                        .weights = weights.layers[set].blocks[i],
                        .read = false});
    }
  }
  return blocks;
}

}  // namespace packhorse
