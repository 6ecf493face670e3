// Matrix products of one warp over tiles in shared memory, for compute capability 8.0 and later:
// thin wrappers of CuTe's atoms for mma.sync m16n8k16, ldmatrix and cp.async, with 16-bit operands
// and float32 accumulation. The layouts of the registers are those of the PTX ISA, "Matrix
// Fragments for mma.m16n8k16".
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm80.hpp>
#include <cute/arch/mma_sm80.hpp>

#include "cuda/common/reduce.cuh"
#include "cuda/common/vector.cuh"

namespace packhorse::cuda {

/// The number of elements from one row of a tile to the next. The 16 extra bytes put the eight rows
/// that ldmatrix reads at once into different banks.
template <int kColumns>
inline constexpr int kPitch = kColumns + 8;

/// One thread's registers of an A operand (16 rows x 16 columns), or of two neighbouring B operands
/// (16 x 8 each).
struct Fragment {
  uint32_t x[4];
};

/// The place of this thread's four accumulators in a 16 x 8 product: rows `row` and `row` + 8,
/// columns `column` and `column` + 1. Steps: to the second row, to the second column, and to the
/// columns of the next block.
struct AccumulatorPlace {
  static constexpr int kRowStep = 8, kColumnStep = 1, kBlockStep = 8;
  int row = static_cast<int>(threadIdx.x) % 32 / 4;
  int column = static_cast<int>(threadIdx.x) % 4 * 2;
};

/// c += a b, where b0 and b1 are this thread's registers of one B operand.
template <class T>
__device__ void mma(float (&c)[4], const Fragment& a, uint32_t b0, uint32_t b1) {
  using Atom = std::conditional_t<std::is_same_v<T, __half>, cute::SM80_16x8x16_F32F16F16F32_TN,
                                  cute::SM80_16x8x16_F32BF16BF16F32_TN>;
  Atom::fma(c[0], c[1], c[2], c[3], a.x[0], a.x[1], a.x[2], a.x[3], b0, b1, c[0], c[1], c[2], c[3]);
}

/// ldmatrix.x4: every lane passes the address of one row of 16 bytes.
template <class T>
__device__ Fragment load_fragment(const T* at) {
  Fragment f;
  cute::SM75_U32x4_LDSM_N::copy(*reinterpret_cast<const cute::uint128_t*>(at), f.x[0], f.x[1],
                                f.x[2], f.x[3]);
  return f;
}

/// ldmatrix.x4.trans: load_fragment with each 8 x 8 matrix transposed.
template <class T>
__device__ Fragment load_fragment_transposed(const T* at) {
  Fragment f;
  cute::SM75_U16x8_LDSM_T::copy(*reinterpret_cast<const cute::uint128_t*>(at), f.x[0], f.x[1],
                                f.x[2], f.x[3]);
  return f;
}

/// Loads the A operand at (row, column) of a tile.
template <int kColumns, class T>
__device__ Fragment load_a(const T* tile, int row, int column) {
  const int lane = threadIdx.x % 32;
  return load_fragment(tile + (row + lane % 16) * kPitch<kColumns> + column + lane / 16 * 8);
}

/// Loads the two B operands of columns n to n + 7 and n + 8 to n + 15, from a tile that holds B
/// transposed (its row n, its column k).
template <int kColumns, class T>
__device__ Fragment load_b(const T* tile, int n, int k) {
  const int lane = threadIdx.x % 32;
  return load_fragment(tile + (n + lane % 8 + lane / 16 * 8) * kPitch<kColumns> + k +
                       lane / 8 % 2 * 8);
}

/// Loads the two B operands of load_b from a tile that holds B as it is (its row k, its column n).
template <int kColumns, class T>
__device__ Fragment load_b_transposed(const T* tile, int k, int n) {
  const int lane = threadIdx.x % 32;
  return load_fragment_transposed(tile + (k + lane % 16) * kPitch<kColumns> + n + lane / 16 * 8);
}

/// Transposes an 8 x 8 matrix of 16-bit elements, of which a lane has two neighbours of a row (PTX
/// ISA, movmatrix).
__device__ inline uint32_t transpose_matrix(uint32_t pair) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

/// Makes an A operand, converted to T, of two neighbouring 16 x 8 accumulators.
template <class T>
__device__ Fragment pack_a(const float (&left)[4], const float (&right)[4]) {
  const auto pack = [](float a, float b) {
    const auto pair = Element<T>::pair(a, b);
    return *reinterpret_cast<const uint32_t*>(&pair);
  };
  return {pack(left[0], left[1]), pack(left[2], left[3]), pack(right[0], right[1]),
          pack(right[2], right[3])};
}

/// The layout of a tile whose rows are kPitch<kColumns_> elements apart in shared memory.
template <int kColumns_>
struct PaddedRows {
  static constexpr int kColumns = kColumns_;
  __device__ static int offset(int row, int column) { return row * kPitch<kColumns> + column; }
};

/// Starts copying 16 bytes. Where not `inside`, zeros are written and nothing is read.
template <class T>
__device__ void copy_vector_async(T* to, const T* from, bool inside) {
  using Bits = cute::uint128_t;
  cute::SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<Bits>::copy(*reinterpret_cast<const Bits*>(from),
                                                    *reinterpret_cast<Bits*>(to), inside);
}

/// Starts copying 16 bytes.
template <class T>
__device__ void copy_vector_async(T* to, const T* from) {
  using Bits = cute::uint128_t;
  cute::SM80_CP_ASYNC_CACHEGLOBAL<Bits>::copy(*reinterpret_cast<const Bits*>(from),
                                              *reinterpret_cast<Bits*>(to));
}

/// Starts copying kRows rows to a tile, by all kThreads threads of the block. Rows from `rows` on
/// and columns from `columns` on become zeros and are not read. `stride` is in elements, between
/// rows of `from`.
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

/// Starts copying kRows rows, as copy_rows_async, to a tile whose rows are kPitch<kColumns>
/// elements apart.
template <int kRows, int kColumns, int kThreads, class T>
__device__ void copy_tile_async(T* tile, const T* from, int64_t stride, int rows, int columns) {
  copy_rows_async<kRows, PaddedRows<kColumns>, kThreads>(tile, from, stride, rows, columns);
}

/// The maximum and the sum over the four lanes (a quad) that hold the same rows of an accumulator.
__device__ inline float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, 1));
  return fmaxf(value, __shfl_xor_sync(kFullWarp, value, 2));
}
__device__ inline float quad_sum(float value) {
  value += __shfl_xor_sync(kFullWarp, value, 1);
  return value + __shfl_xor_sync(kFullWarp, value, 2);
}

/// Returns 2^x by one instruction (PTX ISA, ex2.approx); 0 for -infinity.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace packhorse::cuda
