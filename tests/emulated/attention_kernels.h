// Hopper's attention for heads of other sizes than 64.
#pragma once

#include "cuda/attention/attention.h"

namespace packhorse::cuda {

/// Takes float16 and heads of 128 columns, by two warpgroups that take turns.
void launch_attention_128(const AttentionArgs& args, int32_t* next_tile, int sm_count);
/// Takes float16 and heads of 32 columns, by one warpgroup.
void launch_attention_32(const AttentionArgs& args, int32_t* next_tile, int sm_count);

}  // namespace packhorse::cuda
