#include <algorithm>

#include "cuda/launch.cuh"
#include "cuda/rows/raise.cuh"
#include "cuda/rows/row.cuh"
#include "cuda/rows/sparse_pool.h"

namespace packhorse::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kBlockRows = 32;
constexpr int kInFlight = 8;  // rows that a thread asks for before it looks at one

// A thread has eight columns of 32 rows. Sequences end within a block, and reach over several:
// their parts meet in `out`.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sparse_chunk_kernel(const __grid_constant__ SparseChunk chunk) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t column = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kVectorSize;
  const int64_t begin = int64_t{blockIdx.y} * kBlockRows;
  const int64_t end = min(begin + kBlockRows, chunk.rows);
  const auto row_of = [&](int64_t row) { return static_cast<int>(chunk.first_row + row); };
  const auto offset = [&](int i) { return chunk.cu_seqlens[i]; };
  // Beyond the last sequence lie rows of none: those of a batch that was refused.
  if (row_of(begin) >= offset(chunk.num_sequences)) return;
  int sequence = warp_search(chunk.num_sequences, row_of(begin), offset);
  if (column >= chunk.columns) return;
  const T* logits = static_cast<const T*>(chunk.logits) + column;
  const int count = static_cast<int>(min(int64_t{kVectorSize}, chunk.columns - column));
  float largest[kVectorSize] = {};
  const auto flush = [&] {
    float* out = chunk.out + sequence * chunk.columns + column;
#pragma unroll
    for (int i = 0; i < kVectorSize; ++i) {
      if (i < count) raise(out + i, largest[i]);
      largest[i] = 0;
    }
  };
  for (int64_t first = begin; first < end; first += kInFlight) {
    uint4 bits[kInFlight] = {};
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t row = first + i;
      if (row < end) bits[i] = *reinterpret_cast<const uint4*>(logits + row * chunk.stride);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t row = first + i;
      if (row >= end) break;
      while (offset(sequence + 1) <= row_of(row)) {
        flush();
        if (++sequence == chunk.num_sequences) return;
      }
      float value[kVectorSize];
      unpack<T>(value, bits[i]);
#pragma unroll
      for (int j = 0; j < kVectorSize; ++j) largest[j] = max_nan(value[j], largest[j]);
    }
  }
  flush();
}

__global__ void __launch_bounds__(kThreads) sparse_weights_kernel(float* out, int64_t size) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * kThreads) {
    const float value = out[i];
    if (value != 0) out[i] = log1pf(value);
  }
}

}  // namespace

void launch_sparse_chunk(const SparseChunk& chunk, cudaStream_t stream) {
  if (chunk.rows == 0 || chunk.num_sequences == 0) return;
  const int64_t vectors = (chunk.columns + kVectorSize - 1) / kVectorSize;
  const dim3 grid(static_cast<unsigned>((vectors + kThreads - 1) / kThreads),
                  static_cast<unsigned>((chunk.rows + kBlockRows - 1) / kBlockRows));
  dispatch_dtype(chunk.dtype, [&]<class T>() {
    launch_kernel(sparse_chunk_kernel<T>, grid, kThreads, 0, stream, chunk);
  });
}

void launch_sparse_weights(float* out, int64_t size, cudaStream_t stream) {
  if (size == 0) return;
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>((size + kThreads - 1) / kThreads, int64_t{1} << 16));
  launch_kernel(sparse_weights_kernel, dim3(blocks), kThreads, 0, stream, out, size);
}

}  // namespace packhorse::cuda
