// Portable variable-length attention: compute capability 8.0 and up, all of AttentionParams.
#pragma once

#include "cuda/attention/attention.h"
#include "cuda/attention/attention_limits.h"

namespace packhorse::cuda {

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
