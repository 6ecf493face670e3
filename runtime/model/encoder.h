// The encoder: stem and stack of one model, and the buffers of a batch from ids to outputs.
#pragma once

#include "core/arena.h"
#include "model/batch.h"
#include "model/heads/heads.h"
#include "model/spec.h"
#include "model/stack.h"
#include "model/stem.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace packhorse {

struct ModelBuffers {
  StemBuffers stem;
  LayerBuffers layers;
  HeadBuffers heads;
};

/// Takes the buffers from the arena (count pass and carve pass alike). Of the weights, sizes and
/// dtypes are looked at: those of plan_weights will do.
ModelBuffers take_model_buffers(const Spec& spec, const ModelWeights& weights,
                                const Capacity& capacity, const Ops& ops, Arena& arena);

/// Fills the first T rows of buffers.layers.hidden with the last hidden state of the batch.
/// `before_layer`: as Stack::run.
void encode(const Spec& spec, const ModelWeights& weights, const TokenBatch& tokens,
            const ModelBuffers& buffers, Ops& ops, void (*before_layer)() = nullptr);

}  // namespace packhorse
