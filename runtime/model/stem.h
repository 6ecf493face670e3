// What enters the first layer: rows of tables, one for each token.
#pragma once

#include <optional>

#include "core/arena.h"
#include "model/batch.h"
#include "model/layer_packer.h"
#include "model/spec.h"
#include "ops/ops.h"

namespace packhorse {

struct StemWeights {
  TensorView word_table;
  TensorView position_table;
  TensorView type_table;
  NormWeight norm;
  std::optional<LinearWeight> projection;
};

/// Empty without a projection.
struct StemBuffers {
  TensorView embedded;  // [T, embedding_size]
  void* workspace = nullptr;
};

StemWeights build_stem(const Spec& spec, LayerPacker& packer);
StemBuffers take_stem_buffers(const StemWeights& weights, const Capacity& capacity, const Ops& ops,
                              Arena& arena);

/// hidden = norm(word + position + type), projected to the hidden size where the tables are of
/// another. `hidden`: the first T rows are written.
void embed(const StemSpec& spec, const StemWeights& weights, const StemBuffers& buffers,
           const TokenBatch& tokens, const TensorView& hidden, Ops& ops);

}  // namespace packhorse
