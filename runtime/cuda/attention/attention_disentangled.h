// Attention with a disentangled term.
#pragma once

#include "cuda/attention/attention.h"
#include "cuda/attention/attention_limits.h"

namespace packhorse::cuda {

/// AttentionParams with a term of ScoreTermKind::kDisentangled; head_dim a multiple of 8; row
/// strides multiples of 8 elements, pointers of 16 bytes, also of the term's tables. Each of the
/// term's two products is rounded to the operands' dtype before it is added to q.k, all else is
/// float32. Needs no workspace and allocates nothing; asynchronous on `stream`, may be captured.
/// Throws RuntimeError.
void launch_attention_disentangled(const AttentionParams& params, cudaStream_t stream);

/// The same on a device of compute capability 9.0 exactly.
void launch_attention_disentangled_sm90(const AttentionParams& params, cudaStream_t stream);

}  // namespace packhorse::cuda
