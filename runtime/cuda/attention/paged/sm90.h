// Attention of prompts over the pages of a key-value cache on Hopper.
#pragma once

#include "cuda/attention/paged/paged.h"

namespace packhorse::cuda {

/// True if launch_attention_pages_sm90 takes these arguments: heads of up to 128 columns, of which
/// one key/value head is shared by no more query heads than a block has rows; and counters.
bool attention_pages_sm90_supported(const AttentionArgs& args, const PagedLaunch& how);

/// Raises the kernels' shared memory limits on the current device; once, before any launch.
void prepare_attention_pages_sm90();

/// Does what launch_attention_pages does, with the same bits, where the new tokens lie in their
/// pages already: args.k, args.v, `num_single` and the workspace are not looked at. The first of
/// the counters is zero before and after. Asynchronous; may be captured. Throws
/// RuntimeError.
void launch_attention_pages_sm90(const AttentionArgs& args, const PagedLaunch& how,
                                 const KernelStream& stream);

}  // namespace packhorse::cuda
