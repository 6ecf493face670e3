// The batch sizes that the encoder is recorded for.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "ops/device_context.h"

namespace packhorse::cuda {

/// Sequences of up to so many queries and keys are computed by single warps on Hopper
/// (attention/short/warps.h).
inline constexpr int kWarpTokens = 32;

/// Attention has kernels for batches whose longest sequence has at most this many tokens.
inline constexpr int64_t kShortSequence = 128;

/// Returns the next larger bucket of tokens. Buckets double up to 128 tokens; from there on there
/// are eight to an octave. GEMM tiles of 64 and 128 rows are spread over the SMs in waves, so the
/// choice of tiles is the better the closer a bucket is to the batch.
inline int64_t next_bucket(int64_t bucket) {
  if (bucket < 128) return 2 * bucket;
  return bucket + static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bucket))) / 8;
}

/// Returns bounds for buckets of 16, 32, 64, 128, 144, 160, ... tokens. A bucket that can hold a
/// sequence of more than kShortSequence tokens has two graphs: one for short sequences only,
/// and one for any.
///
/// With `warps`, single warps compute the attention of sequences of up to kWarpTokens tokens
/// (attention/short/warps.h). A bucket then has a graph for such sequences only, and each of the
/// others twice: for batches without any, and for any batch. A batch whose lengths only the device
/// knows takes the last one, which launches all kernels; those that find nothing to do end at once.
inline std::vector<GraphBounds> graph_bounds(int64_t max_tokens, int64_t max_seqlen, bool warps) {
  std::vector<GraphBounds> result;
  const auto add = [&](int64_t bucket, int64_t longest) {
    if (warps && longest > kWarpTokens) result.push_back({bucket, longest, kWarpTokens + 1});
    result.push_back({bucket, longest});
  };
  for (int64_t size = 16;; size = next_bucket(size)) {
    const int64_t bucket = std::min(size, max_tokens);
    const int64_t longest = std::min(bucket, max_seqlen);
    if (warps && longest > kWarpTokens) result.push_back({bucket, kWarpTokens});
    if (longest > kShortSequence) add(bucket, kShortSequence);
    add(bucket, longest);
    if (bucket == max_tokens) return result;
  }
}

}  // namespace packhorse::cuda
