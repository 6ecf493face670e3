// Kernels that pool logits over sequences, for sparse embeddings (SPLADE). The logits of a chunk of
// rows lie in memory. A thread has eight columns of them and goes down the rows, with kInFlight
// rows in flight.
#include <algorithm>

#include "core/math.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/raise.cuh"
#include "cuda/common/reduce.cuh"
#include "cuda/common/vector.cuh"
#include "cuda/rowwise/sparse_pool.h"

namespace packhorse::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kBlockRows = 32;  // rows of a block
constexpr int kInFlight = 8;    // rows that a thread loads before it uses the first

/// Returns log(1 + max(0, logit)), or with `twice` log(1 + that).
__device__ float weight_of(float logit, bool twice) {
  if (logit <= 0) return 0;
  const float weight = log1pf(logit);
  return twice ? log1pf(weight) : weight;
}

// Maxima: a thread has eight columns of 32 rows. A sequence may end within a block and may reach
// over several, so the blocks combine their parts in `out` by atomic maxima.
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
  // Rows after the last sequence belong to none; a refused batch has such rows.
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

// Sums: a thread has eight columns of those sequences whose first row in this chunk lies in its
// block of 32 rows, and it adds up all rows of the chunk for them. A sum is thereby formed in the
// order of the rows.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sparse_sum_kernel(const __grid_constant__ SparseChunk chunk, bool twice) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t column = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kVectorSize;
  const int64_t begin = chunk.first_row + int64_t{blockIdx.y} * kBlockRows;
  const int64_t chunk_end = chunk.first_row + chunk.rows;
  const int64_t end = min(begin + kBlockRows, chunk_end);
  const auto offset = [&](int i) { return chunk.cu_seqlens[i]; };
  if (begin >= offset(chunk.num_sequences)) return;
  int sequence = warp_search(chunk.num_sequences, static_cast<int>(begin), offset);
  if (column >= chunk.columns) return;
  const T* logits = static_cast<const T*>(chunk.logits) + column;
  const int count = static_cast<int>(min(int64_t{kVectorSize}, chunk.columns - column));
  // A sequence that began in an earlier block is summed by that block, unless it began in an
  // earlier chunk.
  while (sequence < chunk.num_sequences && offset(sequence) < begin &&
         (begin > chunk.first_row || offset(sequence + 1) <= begin)) {
    ++sequence;
  }
  for (; sequence < chunk.num_sequences && offset(sequence) < end; ++sequence) {
    const int64_t first = max(int64_t{offset(sequence)}, chunk.first_row);
    const int64_t last = min(int64_t{offset(sequence + 1)}, chunk_end);
    if (first >= last) continue;
    float* out = chunk.out + sequence * chunk.columns + column;
    float total[kVectorSize] = {};
#pragma unroll
    for (int i = 0; i < kVectorSize; ++i) {
      if (i < count) total[i] = out[i];
    }
    for (int64_t row = first; row < last; row += kInFlight) {
      uint4 bits[kInFlight] = {};
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const T* from = logits + (row + i - chunk.first_row) * chunk.stride;
        if (row + i < last) bits[i] = *reinterpret_cast<const uint4*>(from);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (row + i >= last) break;
        float value[kVectorSize];
        unpack<T>(value, bits[i]);
#pragma unroll
        for (int j = 0; j < kVectorSize; ++j) total[j] += weight_of(value[j], twice);
      }
    }
#pragma unroll
    for (int i = 0; i < kVectorSize; ++i) {
      if (i < count) out[i] = total[i];
    }
  }
}

// Turns the largest logits into weights, in place. Zeros stay as they are.
__global__ void __launch_bounds__(kThreads)
    sparse_weights_kernel(float* out, int64_t size, bool twice) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * kThreads) {
    const float value = out[i];
    if (value != 0) out[i] = weight_of(value, twice);
  }
}

dim3 grid_of(const SparseChunk& chunk) {
  const int64_t vectors = ceil_div(chunk.columns, kVectorSize);
  return {block_count(vectors, kThreads), block_count(chunk.rows, kBlockRows)};
}

}  // namespace

void launch_sparse_chunk(const SparseChunk& chunk, const KernelStream& stream) {
  if (chunk.rows == 0 || chunk.num_sequences == 0) return;
  dispatch_dtype(chunk.dtype, [&]<class T>() {
    launch_kernel(sparse_chunk_kernel<T>, grid_of(chunk), kThreads, 0, stream, chunk);
  });
}

void launch_sparse_sum(const SparseChunk& chunk, bool twice, const KernelStream& stream) {
  if (chunk.rows == 0 || chunk.num_sequences == 0) return;
  dispatch_dtype(chunk.dtype, [&]<class T>() {
    launch_kernel(sparse_sum_kernel<T>, grid_of(chunk), kThreads, 0, stream, chunk, twice);
  });
}

void launch_sparse_weights(float* out, int64_t size, bool twice, const KernelStream& stream) {
  if (size == 0) return;
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(ceil_div(size, kThreads), int64_t{1} << 16));
  launch_kernel(sparse_weights_kernel, dim3(blocks), kThreads, 0, stream, out, size, twice);
}

}  // namespace packhorse::cuda
