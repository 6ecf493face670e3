// The host interface of attention with a disentangled term (DeBERTa).
#pragma once

#include "cuda/attention/attention.h"
#include "cuda/attention/limits.h"

namespace packhorse::cuda {

/// Launches attention with a term of kind ScoreTermKind::kDisentangled. head_dim must be a multiple
/// of 8 up to kDisentangledHeadDim, row strides multiples of 8 elements, and pointers aligned to 16
/// bytes; the last two hold for the term's tables, too. Each of the term's two products is rounded
/// to the operands' dtype before it is added to q.k, and probabilities before they are multiplied
/// by v; sums and softmax are in float32. The launch needs no workspace, allocates nothing, is
/// asynchronous on `stream` and may be captured into a graph. Throws RuntimeError.
void launch_attention_disentangled(const AttentionArgs& args, const KernelStream& stream);

/// Launches the kernel for a device of compute capability 9.0 exactly and a head_dim of up to
/// kDisentangledSm90HeadDim; all else is as for launch_attention_disentangled.
void launch_attention_disentangled_sm90(const AttentionArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
