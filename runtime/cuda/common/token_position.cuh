// The position of a token in its sequence of a packed batch.
#pragma once

#include "ops/args/common.h"

namespace packhorse::cuda {

/// Exact sizes of a batch, from device memory where the host knows only bounds.
struct TokenCounts {
  int64_t tokens;
  int sequences;
  __device__ explicit TokenCounts(const BatchView& batch)
      : tokens(batch.counts == nullptr ? batch.num_tokens : batch.counts[0]),
        sequences(batch.counts == nullptr ? static_cast<int>(batch.num_sequences)
                                          : batch.counts[1]) {}
};

/// Returns the token's position in its own sequence, found by one thread in a binary search.
__device__ inline int position_in_sequence(const BatchView& batch, int sequences, int token) {
  int begin = 0;  // the sequence is one of [begin, end)
  int end = sequences;
  while (end - begin > 1) {
    const int middle = (begin + end) / 2;
    (batch.cu_seqlens[middle] <= token ? begin : end) = middle;
  }
  return token - batch.cu_seqlens[begin];
}

}  // namespace packhorse::cuda
