#include "model/transformer.h"

namespace packhorse {

ModelBuffers take_model_buffers(const Spec& spec, const ModelWeights& weights,
                                const Capacity& capacity, const Ops& ops, Arena& arena) {
  ModelBuffers buffers;
  const DType dtype = weights.stem.dtype;
  buffers.layers = take_layer_buffers(spec, weights.stack, capacity, dtype, ops, arena);
  // The stem is done when the first block begins, and the last block is done when the heads begin.
  // So the buffers of stem, blocks and heads share memory.
  {
    const Arena::Scope stem(arena);
    buffers.stem = take_stem_buffers(weights.stem, capacity, ops, arena);
  }
  take_block_buffers(spec, weights.stack, capacity, ops, arena, buffers.layers);
  const Arena::Scope heads(arena);
  buffers.heads =
      take_head_buffers(spec, weights.heads, capacity, buffers.layers.hidden, ops, arena);
  return buffers;
}

void encode(const Spec& spec, const ModelWeights& weights, const TokenBatch& tokens,
            const ModelBuffers& buffers, Ops& ops, void (*before_layer)()) {
  embed(spec.stem, weights.stem, buffers.stem, tokens, buffers.layers.hidden, ops);
  OwnKeys keys;
  Stack(spec.stack, weights.stack, buffers.layers, ops).run(tokens, keys, before_layer);
}

}  // namespace packhorse
