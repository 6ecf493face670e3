// The batches that recordings of the encoder are made for.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "ops/device_context.h"

namespace packhorse::cuda {

/// There are kernels for batches whose longest sequence is no longer than this.
inline constexpr int64_t kShortSequence = 128;

/// The next larger bucket of tokens: twice as large up to 128, then eight to an octave. Tiles of 64
/// and 128 rows make waves over the multiprocessors; the closer a bucket, the better the choice of
/// tiles.
inline int64_t next_bucket(int64_t bucket) {
  if (bucket < 128) return 2 * bucket;
  return bucket + static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bucket))) / 8;
}

/// Buckets of 16, 32, 64, 128, 144, 160, ... tokens; of those that can hold a longer sequence one
/// for short sequences only, and one for any.
inline std::vector<RecordingBounds> recording_bounds(int64_t max_tokens, int64_t max_seqlen) {
  std::vector<RecordingBounds> result;
  for (int64_t size = 16;; size = next_bucket(size)) {
    const int64_t bucket = std::min(size, max_tokens);
    const int64_t longest = std::min(bucket, max_seqlen);
    if (longest > kShortSequence) result.push_back({bucket, kShortSequence});
    result.push_back({bucket, longest});
    if (bucket == max_tokens) return result;
  }
}

}  // namespace packhorse::cuda
