#include "model/transformer.h"

#include "model/layers/residual.h"
#include "model/layers/rope.h"
#include "model/layers/stack_run.h"

namespace packhorse {
namespace {

// Computes what all layers need.
void begin(const StackRun& run, const TokenBatch& tokens) {
  make_rotations(run, tokens.position_ids);
  scale_embeddings(run);
  unfold_input(run);
  // In post-norm models the norm at the end of a block makes the input of the next in e4m3, too.
  if (run.weights.float8 && !run.spec.pre_norm()) quantize(run, {});
}

// Computes what a block reads of the hidden state before it changes it: its input and, if it
// attends, the context.
void read(const StackRun& run, const Block& block) {
  make_block_input(run, block);
  if (const auto* cca = std::get_if<CcaWeights>(&block.weights.kind)) {
    compute(run, block, *cca);
  } else if (const auto* cross = std::get_if<CrossAttentionWeights>(&block.weights.kind)) {
    compute(run, block, *cross);
  } else if (const auto* attention = attention_of(block.weights)) {
    compute(run, block, *attention);
  }
}

// Adds what a block gives to the hidden state.
void add(const StackRun& run, const Block& block) {
  std::visit([&](const auto& weights) { add(run, block, weights); }, block.weights.kind);
}

}  // namespace

void Transformer::run(const TokenBatch& tokens, KeySource& keys, void (*before_layer)(),
                      KeySource* source) const {
  embed(spec_.stem, stem_weights_, stem_, tokens, layers_.hidden, ops_);
  const StackRun run{.spec = spec_,
                     .weights = weights_,
                     .buffers = layers_,
                     .batch = tokens.batch,
                     .grids = tokens.grids,
                     .prefix = tokens.prefix,
                     .keys = keys,
                     .source = source,
                     .adapters = adapters_,
                     .ops = ops_};
  begin(run, tokens);
  for (size_t layer = 0; layer < spec_.layers.size(); ++layer) {
    if (before_layer != nullptr) before_layer();
    const size_t blocks = spec_.layers[layer].blocks.size();
    for (size_t i = 0; i < blocks; ++i) {
      read(run, run.block(layer, i));
      if (!spec_.parallel()) add(run, run.block(layer, i));
    }
    // Parallel blocks compute from the same hidden state.
    for (size_t i = 0; spec_.parallel() && i < blocks; ++i) add(run, run.block(layer, i));
    if (layer == 0) add_convolution(run);
  }
  if (!run.weights.final_norm) return;
  ops_.norm({.x = run.hidden(),
             .norm = run.weights.final_norm,
             .out = run.hidden(),
             .row_count = tokens.batch.counts});
}

ModelBuffers take_model_buffers(const Spec& spec, const ModelWeights& weights,
                                const Capacity& capacity, const Ops& ops, Arena& arena) {
  ModelBuffers buffers;
  const DType dtype = weights.stem.dtype;
  buffers.layers = take_layer_buffers(spec.stack(), weights.stack, capacity, dtype, ops, arena);
  // The stem is done when the first block begins, and the last block is done when the heads begin.
  // So the buffers of stem, blocks and heads share memory.
  {
    const Arena::Scope stem(arena);
    buffers.stem = take_stem_buffers(weights.stem, capacity, ops, arena);
  }
  take_block_buffers(spec.stack(), weights.stack, capacity, ops, arena, buffers.layers);
  const Arena::Scope heads(arena);
  buffers.heads =
      take_head_buffers(spec, weights.heads, capacity, buffers.layers.hidden, ops, arena);
  return buffers;
}

}  // namespace packhorse
