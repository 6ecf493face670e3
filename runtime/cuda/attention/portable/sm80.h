// Portable variable-length attention for compute capability 8.0 and later. It computes every
// AttentionArgs without pages, except those with a disentangled term
// (attention/disentangled/disentangled.h).
#pragma once

#include "cuda/attention/attention.h"
#include "cuda/attention/limits.h"

namespace packhorse::cuda {

/// Raises the kernels' limits of dynamic shared memory on the current device. Called once, before
/// any launch.
void prepare_attention_sm80();

/// Returns how many bytes of workspace `launch_attention_sm80` needs for these bounds: for a term
/// of grids, its tables resized to those of the batch; for the grouped kernels scores of as many
/// heads at once as fit 256 MiB, and of one head where a single one needs more.
size_t attention_sm80_workspace(const AttentionArgs& args, const PortableLimits& limits = {});

/// Launches the kernels. head_dim must be a multiple of 8 up to 256, row strides multiples of 8
/// elements, and pointers aligned to 16 bytes. The launch allocates nothing, is asynchronous on
/// `stream` and may be captured into a graph. Throws InvalidArgument where args.workspace is null
/// but needed, and RuntimeError where a launch fails.
void launch_attention_sm80(const AttentionArgs& args, const KernelStream& stream,
                           const PortableLimits& limits = {});

}  // namespace packhorse::cuda
