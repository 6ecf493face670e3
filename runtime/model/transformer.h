// The encoder, which is the stem and the stack of one model, and the buffers that a batch needs
// from its ids to its outputs.
#pragma once

#include "core/arena.h"
#include "model/batch.h"
#include "model/heads/heads.h"
#include "model/layers/stack.h"
#include "model/loading/weights.h"
#include "model/spec/spec.h"
#include "model/stem/tokens.h"
#include "ops/ops.h"

namespace packhorse {

struct ModelBuffers {
  StemBuffers stem;
  LayerBuffers layers;
  HeadBuffers heads;
};

/// Takes the buffers from the arena, both when the arena only counts memory and when it carves it.
/// Of the weights it reads sizes and dtypes only, so those of plan_weights suffice.
ModelBuffers take_model_buffers(const Spec& spec, const ModelWeights& weights,
                                const Capacity& capacity, const Ops& ops, Arena& arena);

/// Writes the last hidden state of the batch to the first T rows of buffers.layers.hidden.
/// `before_layer` is as in Stack::run.
void encode(const Spec& spec, const ModelWeights& weights, const TokenBatch& tokens,
            const ModelBuffers& buffers, Ops& ops, void (*before_layer)() = nullptr);

}  // namespace packhorse
