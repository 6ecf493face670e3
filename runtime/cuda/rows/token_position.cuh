// Where a token of a packed batch stands.
#pragma once

#include "ops/args.h"

namespace packhorse::cuda {

/// Exact sizes of a batch.
struct TokenCounts {
  int64_t tokens;
  int sequences;
  __device__ explicit TokenCounts(const BatchView& batch)
      : tokens(batch.counts == nullptr ? batch.num_tokens : batch.counts[0]),
        sequences(batch.counts == nullptr ? static_cast<int>(batch.num_sequences)
                                          : batch.counts[1]) {}
};

/// The token's place in its own sequence, looked up by one thread.
__device__ inline int position_in_sequence(const BatchView& batch, int sequences, int token) {
  int begin = 0;  // the sequence is among [begin, end)
  int end = sequences;
  while (end - begin > 1) {
    const int middle = (begin + end) / 2;
    (batch.cu_seqlens[middle] <= token ? begin : end) = middle;
  }
  return token - batch.cu_seqlens[begin];
}

}  // namespace packhorse::cuda
