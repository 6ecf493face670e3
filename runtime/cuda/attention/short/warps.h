// Attention of short sequences on Hopper: a warp computes one head of one sequence of up to
// kWarpTokens tokens. launch_attention_sm90 computes the other sequences of a batch.
#pragma once

#include "cuda/attention/attention.h"
#include "cuda/attention/choice.h"
#include "cuda/attention/limits.h"

namespace packhorse::cuda {

/// True if the warp kernel computes the short sequences of a layer that attention_sm90_supported
/// takes. The answer depends on the layer and never on the batch.
inline bool attention_warps_take(const AttentionArgs& args) {
  return args.head_dim <= kWarpHeadDim && args.term.kind != ScoreTermKind::kDisentangled;
}

/// Returns which kernels launch_attention_sm90 launches.
inline HopperKernels hopper_kernels(const AttentionArgs& args) {
  return hopper_kernels(attention_warps_take(args), args.queries.min_seqlen,
                        args.queries.max_seqlen, args.keys.max_seqlen);
}

/// Computes the sequences for which computed_by_warps is true, and leaves the output rows of all
/// others as they are. The launch allocates nothing, needs no workspace, is asynchronous on
/// `stream` and may be captured into a graph; num_sequences may then be an upper bound. Throws
/// RuntimeError.
void launch_attention_warps(const AttentionArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
