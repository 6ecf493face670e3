// The rotations of a stack's heads: the frequencies of each, and the angles of a batch's tokens.
#pragma once

#include <vector>

#include "core/arena.h"
#include "model/batch.h"
#include "model/loading/layer_packer.h"
#include "model/spec/spec.h"
#include "ops/ops.h"

namespace packhorse {

struct StackRun;

/// The frequencies of each of StackSpec::ropes, [dims / 2].
std::vector<const float*> build_ropes(const StackSpec& spec, LayerPacker& packer);
/// The buffers of their angles, [T, Ops::rotation_columns] float32.
std::vector<TensorView> take_rotations(const StackSpec& spec, int64_t tokens, const Ops& ops,
                                       Arena& arena);
/// Computes the angles of each token, once for all layers.
void make_rotations(const StackRun& run, const int32_t* position_ids);

/// Spread::paired of a head of queries or keys. Columns that are rotated together lie side by side
/// or in two halves, in the source as its model was trained, in memory as the device's kernels
/// rotate them.
int64_t paired_columns(const StackSpec& spec, const LayerPacker& packer);

}  // namespace packhorse
