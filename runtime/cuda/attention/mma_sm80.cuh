// Warp-level matrix products of compute capability 8.0 over tiles in shared memory (CuTe's atoms:
// mma.sync m16n8k16, ldmatrix, cp.async). 16-bit operands, float32 accumulation.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm80.hpp>
#include <cute/arch/mma_sm80.hpp>

#include "cuda/rows/row.cuh"

namespace packhorse::cuda {

/// Elements from one row of a tile to the next: the 16 extra bytes put the eight rows that ldmatrix
/// reads at once into different banks.
template <int kColumns>
inline constexpr int kPitch = kColumns + 8;

/// An A operand of 16 rows x 16, or two B operands of 16 x 8 side by side.
struct Fragment {
  uint32_t x[4];
};

/// Where this thread's four accumulators of a 16 x 8 product lie: rows row and row + 8, columns
/// column and column + 1.
struct AccumulatorPlace {
  int row = static_cast<int>(threadIdx.x) % 32 / 4;
  int column = static_cast<int>(threadIdx.x) % 4 * 2;
};

template <class T>
__device__ void mma(float (&c)[4], const Fragment& a, uint32_t b0, uint32_t b1) {
  using Atom = std::conditional_t<std::is_same_v<T, __half>, cute::SM80_16x8x16_F32F16F16F32_TN,
                                  cute::SM80_16x8x16_F32BF16BF16F32_TN>;
  Atom::fma(c[0], c[1], c[2], c[3], a.x[0], a.x[1], a.x[2], a.x[3], b0, b1, c[0], c[1], c[2], c[3]);
}

template <class T>
__device__ Fragment load_fragment(const T* at) {
  Fragment f;
  cute::SM75_U32x4_LDSM_N::copy(*reinterpret_cast<const cute::uint128_t*>(at), f.x[0], f.x[1],
                                f.x[2], f.x[3]);
  return f;
}

template <class T>
__device__ Fragment load_fragment_transposed(const T* at) {
  Fragment f;
  cute::SM75_U16x8_LDSM_T::copy(*reinterpret_cast<const cute::uint128_t*>(at), f.x[0], f.x[1],
                                f.x[2], f.x[3]);
  return f;
}

/// The A operand at (row, column) of a tile.
template <int kColumns, class T>
__device__ Fragment load_a(const T* tile, int row, int column) {
  const int lane = threadIdx.x % 32;
  return load_fragment(tile + (row + lane % 16) * kPitch<kColumns> + column + lane / 16 * 8);
}

/// Two B operands, columns n and n + 8 of them, from a tile that holds B^T (row n, column k).
template <int kColumns, class T>
__device__ Fragment load_b(const T* tile, int n, int k) {
  const int lane = threadIdx.x % 32;
  return load_fragment(tile + (n + lane % 8 + lane / 16 * 8) * kPitch<kColumns> + k +
                       lane / 8 % 2 * 8);
}

/// The same from a tile that holds B (row k, column n).
template <int kColumns, class T>
__device__ Fragment load_b_transposed(const T* tile, int k, int n) {
  const int lane = threadIdx.x % 32;
  return load_fragment_transposed(tile + (k + lane % 16) * kPitch<kColumns> + n + lane / 16 * 8);
}

/// The A operand made of two neighbouring 16 x 8 accumulators.
template <class T>
__device__ Fragment pack_a(const float (&left)[4], const float (&right)[4]) {
  const auto pack = [](float a, float b) {
    const auto pair = Element<T>::pair(a, b);
    return *reinterpret_cast<const uint32_t*>(&pair);
  };
  return {pack(left[0], left[1]), pack(left[2], left[3]), pack(right[0], right[1]),
          pack(right[2], right[3])};
}

/// Rows of a tile in shared memory, kPitch<kColumns_> apart.
template <int kColumns_>
struct PaddedRows {
  static constexpr int kColumns = kColumns_;
  __device__ static int offset(int row, int column) { return row * kPitch<kColumns> + column; }
};

/// Starts copying 16 bytes; zeros, and nothing is read, where not `inside`.
template <class T>
__device__ void copy_vector_async(T* to, const T* from, bool inside) {
  using Bits = cute::uint128_t;
  cute::SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<Bits>::copy(*reinterpret_cast<const Bits*>(from),
                                                    *reinterpret_cast<Bits*>(to), inside);
}

/// Starts copying kRows rows; rows from `rows` on and columns from `columns` on become zeros and
/// are not read.
template <int kRows, class Layout, int kThreads, class T>
__device__ void copy_rows_async(T* tile, const T* from, int64_t stride, int rows, int columns) {
  constexpr int kAcross = Layout::kColumns / kVectorSize;
  static_assert(kRows * kAcross % kThreads == 0);
#pragma unroll
  for (int i = 0; i < kRows * kAcross / kThreads; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x);
    const int row = at / kAcross;
    const int column = at % kAcross * kVectorSize;
    const bool inside = row < rows && column < columns;
    copy_vector_async(tile + Layout::offset(row, column),
                      inside ? from + row * stride + column : from, inside);
  }
}

template <int kRows, int kColumns, int kThreads, class T>
__device__ void copy_tile_async(T* tile, const T* from, int64_t stride, int rows, int columns) {
  copy_rows_async<kRows, PaddedRows<kColumns>, kThreads>(tile, from, stride, rows, columns);
}

/// Maximum and sum over the four lanes that share an accumulator's rows.
__device__ inline float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, 1));
  return fmaxf(value, __shfl_xor_sync(kFullWarp, value, 2));
}
__device__ inline float quad_sum(float value) {
  value += __shfl_xor_sync(kFullWarp, value, 1);
  return value + __shfl_xor_sync(kFullWarp, value, 2);
}

/// 2^x in one instruction; 0 for -infinity.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace packhorse::cuda
