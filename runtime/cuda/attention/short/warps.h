// Attention of short texts on Hopper: a warp computes one head of one sequence of up to kWarpTokens
// tokens. Other sequences of a batch are for launch_attention_sm90, which leaves these alone.
#pragma once

#include "cuda/attention/attention.h"
#include "cuda/attention/choice.h"
#include "cuda/attention/limits.h"

namespace packhorse::cuda {

/// True if the warps take the short sequences of a layer: heads of up to kWarpHeadDim columns that
/// attention_sm90_supported takes, too. This depends on the layer and never on the batch.
inline bool attention_warps_take(const AttentionArgs& args) {
  return args.head_dim <= kWarpHeadDim && args.term.kind != ScoreTermKind::kDisentangled;
}

/// Returns which kernels launch_attention_sm90 launches.
inline HopperKernels hopper_kernels(const AttentionArgs& args) {
  return hopper_kernels(attention_warps_take(args), args.queries.min_seqlen,
                        args.queries.max_seqlen, args.keys.max_seqlen);
}

/// Computes the sequences for which computed_by_warps is true, and leaves the rows of all others
/// alone. The launch allocates nothing, needs no workspace, is asynchronous on `stream` and may be
/// captured into a graph; num_sequences may then be any bound. Throws RuntimeError.
void launch_attention_warps(const AttentionArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
