// Keys and values of new tokens into the pages of a cache.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/kv_cache.h"

namespace packhorse::cuda {

/// Rows of k and v are of a 16-bit dtype and of whole 16-byte accesses, and so are the pages; or
/// these are kFloat8, with scales, and of whole 8-byte accesses.
void launch_append_kv_cache(const AppendKvCacheArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
