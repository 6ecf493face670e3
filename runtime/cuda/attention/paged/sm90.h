// Attention of prompts over the pages of a key-value cache on Hopper.
#pragma once

#include "cuda/attention/paged/paged.h"

namespace packhorse::cuda {

/// True if launch_attention_pages_sm90 takes these arguments: heads of up to 128 columns, no more
/// query heads per key/value head than a block has rows, and counters.
bool attention_pages_sm90_supported(const AttentionArgs& args, const PagedLaunch& how);

/// Raises the kernels' shared memory limits on the current device. Called once, before any launch.
void prepare_attention_pages_sm90();

/// Launches attention over pages, with the bits of launch_attention_pages. New tokens must lie in
/// their pages already: args.k, args.v, `num_single` and the workspace are ignored. The first
/// counter must be zero, and is zero afterwards. Asynchronous on `stream`; may be captured. Throws
/// RuntimeError.
void launch_attention_pages_sm90(const AttentionArgs& args, const PagedLaunch& how,
                                 const KernelStream& stream);

}  // namespace packhorse::cuda
