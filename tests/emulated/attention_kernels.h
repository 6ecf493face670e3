// Hopper's attention for heads of other sizes than 64.
#pragma once

#include "cuda/attention/attention.h"

namespace packhorse::cuda {

/// Launches attention of float16 and heads of 128 columns, by two warpgroups that take turns.
void launch_attention_128(const AttentionParams& params);
/// Launches attention of float16 and heads of 32 columns, by one warpgroup.
void launch_attention_32(const AttentionParams& params);

}  // namespace packhorse::cuda
