// Copies of new tokens' keys and values to the pages of a cache.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/kv_cache.h"

namespace packhorse::cuda {

/// Computes AppendKvCacheArgs. k and v are 16-bit, with head_dim and strides that are multiples of
/// 8. The pages have the same dtype, or kFloat8 with scales. Asynchronous on `stream`. Throws
/// RuntimeError.
void launch_append_kv_cache(const AppendKvCacheArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
