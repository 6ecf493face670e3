// The transformer: the stem and the layers of a stack, and the buffers that a batch needs from its
// ids to its outputs.
#pragma once

#include "core/arena.h"
#include "model/batch.h"
#include "model/heads/heads.h"
#include "model/layers/key_source.h"
#include "model/layers/stack.h"
#include "model/loading/adapters.h"
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
/// It reads sizes and dtypes of the weights only, so those of plan_weights suffice.
ModelBuffers take_model_buffers(const Spec& spec, const ModelWeights& weights,
                                const Capacity& capacity, const Ops& ops, Arena& arena);

/// Runs batches through stem and layers.
class Transformer {
 public:
  /// The stack whose hidden state the heads read. The arguments must outlive this object.
  /// `adapters`: those of the batch that is run, or null.
  Transformer(const Spec& spec, const ModelWeights& weights, const StemBuffers& stem,
              const LayerBuffers& layers, Ops& ops, const AdapterBatch* adapters = nullptr)
      : Transformer(spec.stack(), weights.stem, weights.stack, stem, layers, ops, adapters) {}
  /// Any stack.
  Transformer(const StackSpec& spec, const StemWeights& stem_weights, const StackWeights& weights,
              const StemBuffers& stem, const LayerBuffers& layers, Ops& ops,
              const AdapterBatch* adapters = nullptr)
      : spec_(spec),
        stem_weights_(stem_weights),
        weights_(weights),
        stem_(stem),
        layers_(layers),
        ops_(ops),
        adapters_(adapters) {}

  /// Writes the last hidden state to the first T rows of `hidden` of the layers' buffers.
  /// `before_layer`, if not null, is called before each layer and may throw. `source`: keys and
  /// values that cross attention reads; null in a stack without it.
  void run(const TokenBatch& tokens, KeySource& keys, void (*before_layer)() = nullptr,
           KeySource* source = nullptr) const;

 private:
  const StackSpec& spec_;
  const StemWeights& stem_weights_;
  const StackWeights& weights_;
  const StemBuffers& stem_;
  const LayerBuffers& layers_;
  Ops& ops_;
  const AdapterBatch* adapters_;
};

}  // namespace packhorse
