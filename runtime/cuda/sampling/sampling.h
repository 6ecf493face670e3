// Choosing tokens on CUDA. Arguments are checked by Ops.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/sample_args.h"

namespace packhorse::cuda {

/// Where the blocks of a row merge what they have found: zeros before and after every launch.
struct SampleMerge {
  unsigned long long best = 0;
  unsigned blocks = 0;
};
/// Rows up to which several blocks may have a row.
inline constexpr int64_t kMostMerges = 1024;

/// Asynchronous on `stream`, may be captured; workspace: a float for each bias; merges: one for
/// each row, kMostMerges suffice.
void launch_sample(const SampleArgs& args, SampleMerge* merges, int sm_count, cudaStream_t stream);
void launch_count_tokens(const CountTokensArgs& args, cudaStream_t stream);

}  // namespace packhorse::cuda
