// The kernels that only models of images ask for.
//
// Ops has checked the arguments. Tensors are of one 16-bit dtype. All are asynchronous on `stream`,
// allocate nothing, may be captured into a graph, and throw RuntimeError. What a sequence gets
// depends on nothing beside it.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/patches.h"

namespace packhorse::cuda {

/// Rows are whole, aligned 16-byte accesses. The batch's numbers may be bounds, with `counts`; x
/// then has rows beyond those of patches, which are not read.
void launch_embed_patches(const EmbedPatchesArgs& args, const KernelStream& stream);

/// Columns and strides of any number. A sequence's keys are summed in an order that its length
/// alone fixes.
void launch_probe_attention(const ProbeAttentionArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
