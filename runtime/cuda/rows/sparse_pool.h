// The maximum of logits over sequences, chunk by chunk of a batch's rows: for devices whose GEMM
// does not pool. And what follows it.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/args.h"

namespace packhorse::cuda {

/// Rows whose logits exist at one time: few enough that they stay in the L2 cache or near it,
/// enough to fill the machine. What they are divided into does not show: a row's logits and a
/// maximum do not depend on it.
inline constexpr int64_t kSparsePoolRows = 512;

/// Rows [first_row, first_row + rows) of a batch.
struct SparseChunk {
  const void* logits = nullptr;  // [rows, stride], 16-bit; stride is a multiple of 8
  int64_t stride = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
  const int32_t* cu_seqlens = nullptr;
  int32_t num_sequences = 0;
  float* out = nullptr;  // [num_sequences, columns], contiguous
  int64_t columns = 0;
  DType dtype = DType::kFloat16;
};

/// out = max(out, logits of the sequence's rows); `out` is zeros before the first chunk. NaN wins.
void launch_sparse_chunk(const SparseChunk& chunk, cudaStream_t stream);
/// out += log(1 + max(0, logits)) of the sequence's rows, one after the other, or with `twice` the
/// logarithm of 1 + that; `out` is zeros before the first chunk.
void launch_sparse_sum(const SparseChunk& chunk, bool twice, cudaStream_t stream);
/// out = log(1 + out), or with `twice` that of it
void launch_sparse_weights(float* out, int64_t size, bool twice, cudaStream_t stream);

}  // namespace packhorse::cuda
