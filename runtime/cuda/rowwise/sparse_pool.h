// Maxima or sums of logits over sequences (SPLADE), chunk by chunk of a batch's rows, and the
// weights made of maxima. They serve sums, and maxima on devices whose GEMM does not pool.
#pragma once

#include "cuda/device/stream.h"
#include "packhorse/types.h"

namespace packhorse::cuda {

/// Rows whose logits are in memory at one time: few enough that most logits stay in the L2 cache,
/// and enough to fill the device. This number does not change any result: neither a row's logits
/// nor a maximum depends on it, and sums are formed in the order of the rows.
inline constexpr int64_t kSparsePoolRows = 512;

/// Rows [first_row, first_row + rows) of a batch, with their logits.
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

/// out = max(out, the logits of the sequence's rows), where a NaN wins. `out` must be zeros before
/// the first chunk.
void launch_sparse_chunk(const SparseChunk& chunk, const KernelStream& stream);
/// out += log(1 + max(0, logit)) for the sequence's rows, one after the other; with `twice` the sum
/// is over log(1 + that). `out` must be zeros before the first chunk.
void launch_sparse_sum(const SparseChunk& chunk, bool twice, const KernelStream& stream);
/// out = log(1 + out), or with `twice` log(1 + log(1 + out)).
void launch_sparse_weights(float* out, int64_t size, bool twice, const KernelStream& stream);

}  // namespace packhorse::cuda
