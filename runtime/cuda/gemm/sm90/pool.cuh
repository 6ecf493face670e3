// Epilogue of a Hopper GEMM that keeps, for each sequence and column, the largest result over the
// sequence's rows, and stores no row.
#pragma once

#include "cuda/common/raise.cuh"
#include "cuda/common/reduce.cuh"
#include "cuda/gemm/sm90/traits.cuh"

namespace packhorse::cuda::sm90_gemm {

/// Pools a warp's part of a tile: 16 rows of each wgmma block, beginning at first_row + 64 b. The
/// warp looks up in the offsets which sequences these rows belong to, takes the maximum over the
/// rows of each, and combines it with those of other warps and tiles by an atomic maximum in global
/// memory. Rows after the last sequence belong to none.
template <class Traits, class Accumulators>
__device__ void pool_tile(const GemmArgsSm90& args, const Accumulators& acc, int first_row,
                          int first_column) {
  constexpr int kBlocks = Traits::kBlocks;
  static_assert(Traits::kColumns % 64 == 0);
  const GemmPool& pool = args.pool;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto offset = [&](int i) { return pool.cu_seqlens[i]; };
  const int end_row = min(first_row + 64 * (kBlocks - 1) + 16, offset(pool.num_sequences));
  if (first_row >= end_row) return;
  int sequence = warp_search(pool.num_sequences, first_row, offset);
  for (int begin = offset(sequence), end; begin < end_row; begin = end, ++sequence) {
    end = offset(sequence + 1);
    bool met = false;
    bool counts[kBlocks][2];  // which of this lane's rows belong to the sequence
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int first = first_row + 64 * b;
      met |= begin < first + 16 && end > first && begin < end;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = first + 8 * h + lane / 4;
        counts[b][h] = begin <= row && row < end;
      }
    }
    if (!met) continue;
#pragma unroll
    for (int s = 0; s < Traits::kColumns / 64; ++s) {
      float largest[2];  // the maxima of column 2 * lane and of the next
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float value = -INFINITY;
#pragma unroll
          for (int i = 0; i < 2 * kBlocks; ++i) {
            const int b = i / 2, h = i % 2;
            value =
                max_nan(value, counts[b][h] ? acc(32 * s + 4 * j + 2 * h + e, b, 0) : -INFINITY);
          }
#pragma unroll
          for (int mask = 4; mask < 32; mask *= 2) {
            value = max_nan(value, __shfl_xor_sync(kFullWarp, value, mask));
          }
          if (j == 0 || lane / 4 == j) largest[e] = value;
        }
      }
      // The bias may be added after the maximum, since rounding keeps the order of numbers.
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = first_column + 64 * s + 2 * lane + e;
        if (column >= pool.columns) continue;
        const float bias = args.bias == nullptr ? 0.0f : __ldg(args.bias + column);
        raise(pool.out + int64_t{sequence} * pool.columns + column, largest[e] + bias);
      }
    }
  }
}

}  // namespace packhorse::cuda::sm90_gemm
