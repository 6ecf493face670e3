// Attention of prompts over the pages of a key-value cache on Hopper: raw pointers, sizes, a
// stream.
#pragma once

#include "cuda/attention/paged/paged.h"

namespace packhorse::cuda {

/// Returns whether launch_attention_pages_sm90 takes these arguments: heads of up to 128 columns,
/// at most as many query heads per key/value head as a block has rows, and counters.
bool attention_pages_sm90_supported(const PagedAttentionParams& params);

/// Raises the kernels' shared memory limits on the current device; once, before any launch.
void prepare_attention_pages_sm90();

/// Does what launch_attention_pages does, with the same bits, where the new tokens lie in their
/// pages already: `new_keys`, `new_values`, `num_single` and the workspace are not looked at.
/// The first of `counters` is zero before and after. Asynchronous; may be captured. Throws
/// RuntimeError.
void launch_attention_pages_sm90(const PagedAttentionParams& params, cudaStream_t stream);

}  // namespace packhorse::cuda
