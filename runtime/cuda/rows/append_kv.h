// Keys and values of new tokens into the pages of a cache.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/args.h"

namespace packhorse::cuda {

/// Rows of k and v and the pages are of one 16-bit dtype and of whole 16-byte accesses.
void launch_append_kv(const AppendKvArgs& args, cudaStream_t stream);

}  // namespace packhorse::cuda
