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

/// Returns the index of the sequence that a token belongs to, found by one thread in a binary
/// search. Empty sequences have no tokens and are not found.
__device__ inline int sequence_of(const BatchView& batch, int sequences, int token) {
  int begin = 0;  // the sequence is one of [begin, end)
  int end = sequences;
  while (end - begin > 1) {
    const int middle = (begin + end) / 2;
    (batch.cu_seqlens[middle] <= token ? begin : end) = middle;
  }
  return begin;
}

/// Returns the token's position in its own sequence.
__device__ inline int position_in_sequence(const BatchView& batch, int sequences, int token) {
  return token - batch.cu_seqlens[sequence_of(batch, sequences, token)];
}

}  // namespace packhorse::cuda
