// Portable variable-length attention: compute capability 8.0 and up, all of AttentionParams.
#pragma once

#include "cuda/attention/attention.h"

namespace packhorse::cuda {

/// The longest sequences (in keys) of the two kernels beside the general one, -1: none. Heads wider
/// than 128 always take the general one. The bits of a result depend on these.
///
/// The general kernel alone is the default, since it was the fastest at every length measured
/// (H200: 16 x 384 of 12 heads of 64, 30 us against 46 us for whole rows and 52 us for grouped
/// GEMMs), and it needs no workspace.
struct PortableLimits {
  int32_t short_keys = -1;    // whole score rows on chip; at most 384
  int32_t grouped_keys = -1;  // grouped GEMMs with scores in the workspace; at most 1024
};

/// ByteTransformer's choice of kernels.
inline constexpr PortableLimits kByteTransformerLimits{384, 1024};

/// Raises the kernels' shared memory limits on the current device; once, before any launch.
void prepare_attention_sm80();

/// Bytes that `launch_attention_sm80` needs as `workspace` for these bounds. Scores of as many
/// heads as fit 256 MiB are in memory at once (of one head, where one needs more).
size_t attention_sm80_workspace(int64_t num_tokens_q, int64_t max_seqlen_k, int64_t num_heads,
                                int64_t head_dim, const PortableLimits& limits = {});

/// Any head_dim that is a multiple of 8 up to 256; row strides multiples of 8 elements, pointers of
/// 16 bytes. Allocates nothing; asynchronous on `stream`, may be captured. Throws RuntimeError.
void launch_attention_sm80(const AttentionParams& params, cudaStream_t stream,
                           const PortableLimits& limits = {});

}  // namespace packhorse::cuda
