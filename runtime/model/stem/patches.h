// The stem of images makes the input of the first layer from patches: a dense layer over their
// elements, plus the positions of their cells, behind rows that every image has.
#pragma once

#include "core/arena.h"
#include "model/batch.h"
#include "model/loading/layer_packer.h"
#include "model/spec/spec.h"
#include "ops/ops.h"

namespace packhorse {

struct PatchWeights {
  LinearWeight projection;  // [E, features]
  TensorView prefix;        // [prefix, E] or empty
  TensorView positions;     // [grid_rows * grid_columns, E] or empty
};

struct PatchBuffers {
  TensorView rounded;    // [P, features as stored], if features are not taken as they are
  TensorView projected;  // [P, E]
  void* workspace = nullptr;
};

/// `name`: beginning of the names of its tensors, such as "embeddings.".
PatchWeights build_patches(const StackSpec& stack, const std::string& name, LayerPacker& packer);
/// `dtype`: that of activations.
PatchBuffers take_patch_buffers(const PatchWeights& weights, int64_t features, DType dtype,
                                const Capacity& capacity, const Ops& ops, Arena& arena);

/// The dense layer over `features` [P, k] float32. Returns [P, E] in the buffers. `row_count`: as
/// LinearArgs::row_count.
TensorView project_patches(const PatchWeights& weights, const PatchBuffers& buffers,
                           const TensorView& features, const int32_t* row_count, Ops& ops);

/// hidden = norm(prefix, then projection(patches) + positions), the rows of each image in order.
/// Writes the first T rows of `hidden`.
void embed_patches(const PatchesSpec& spec, const PatchWeights& weights, const NormWeight& norm,
                   const PatchBuffers& buffers, const TokenBatch& tokens, const TensorView& hidden,
                   Ops& ops);

}  // namespace packhorse
