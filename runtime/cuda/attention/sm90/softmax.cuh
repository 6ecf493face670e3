// Turns scores into probabilities in the registers of one warpgroup: additive term, mask, and
// online softmax (arXiv 1805.02867) in base 2.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cutlass/numeric_types.h>

#include <cmath>
#include <cstdint>
#include <cute/config.hpp>
#include <type_traits>

#include "cuda/attention/relative_bucket.cuh"
#include "cuda/attention/varlen.cuh"
#include "ops/args/attention.h"

namespace packhorse::cuda::sm90 {

/// Returns 2^x by one instruction (PTX ISA, ex2.approx); 0 for -infinity.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Rounds two floats to Element and packs them into one register, `low` in the lower half.
template <class Element>
__device__ uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<Element, cutlass::half_t>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

/// Fills buckets[offset + max_distance] for the offsets (key - query) from -max_distance to
/// max_distance. Offsets beyond these share the last bucket of their side.
__device__ inline void fill_buckets(uint8_t* buckets, const ScoreTerm& term) {
  for (int i = threadIdx.x; i <= 2 * term.max_distance; i += blockDim.x) {
    buckets[i] = static_cast<uint8_t>(relative_bucket(term, i - term.max_distance));
  }
}

/// This thread's part of a warpgroup's 64 rows of scores or output in the layout of wgmma: rows
/// `row` and row + 8, and in each the columns 8 g + column and 8 g + column + 1 for every group g
/// of 8 columns. Element (row + 8 h, 8 g + column + x) is register 4 g + 2 h + x.
struct ThreadPart {
  int32_t row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  int32_t column = threadIdx.x % 4 * 2;
};

/// Returns the position, among the keys of its sequence, of the first of this warpgroup's 64 rows.
__device__ inline int32_t first_position(const QueryTile& tile) {
  return tile.sequence.k_length - tile.sequence.q_length + tile.row +
         static_cast<int32_t>(threadIdx.x / 128 * 64);
}

/// Sets scores outside of the columns [begin[r], end[r]) of the thread's row r to -infinity.
/// Columns are counted from this thread's first one.
template <int columns, bool check_begin>
__device__ void mask_scores(float* s, const int32_t (&begin)[2], const int32_t (&end)[2]) {
  CUTE_UNROLL
  for (int i = 0; i < columns / 2; ++i) {
    const int x = 8 * (i / 4) + i % 2;
    const int r = i / 2 % 2;
    if (x >= end[r] || (check_begin && x < begin[r])) s[i] = -INFINITY;
  }
}

/// Sets the scores of keys that a row does not see to -infinity. `first_key` is the key of column
/// 0.
template <int columns>
__device__ void mask_scores(float* s, const QueryTile& tile, KeyWindow window, int32_t first_key) {
  const ThreadPart part;
  const int32_t base = first_key + part.column;
  int32_t begin[2], end[2];
  for (int r = 0; r < 2; ++r) {
    const int32_t position = first_position(tile) + part.row + 8 * r;
    end[r] = min(tile.sequence.k_length, position + window.right + 1) - base;
    begin[r] = position - window.left - base;
  }
  if (window.left == kUnlimitedWindow) {
    mask_scores<columns, false>(s, begin, end);
  } else {
    mask_scores<columns, true>(s, begin, end);
  }
}

/// s = s * scale + term, where `buckets` is the table that fill_buckets made.
template <int columns>
__device__ void add_term(float* s, const QueryTile& tile, const ScoreTerm& term, float scale,
                         int32_t num_heads, const uint8_t* buckets, int32_t first_key) {
  const ThreadPart part;
  const int32_t shift = first_key + part.column - first_position(tile) - part.row;
  const auto offset = [&](int i) { return shift + 8 * (i / 4) + i % 2 - 8 * (i / 2 % 2); };
  if (term.kind == ScoreTermKind::kAlibi) {
    const float slope = -term.slopes[tile.head];
    CUTE_UNROLL
    for (int i = 0; i < columns / 2; ++i) {
      s[i] = __fmaf_rn(s[i], scale, slope * static_cast<float>(abs(offset(i))));
    }
  } else {
    const float* table = term.table + tile.head;
    const int32_t far = term.max_distance;
    CUTE_UNROLL
    for (int i = 0; i < columns / 2; ++i) {
      const int bucket = buckets[min(max(offset(i), -far), far) + far];
      s[i] = __fmaf_rn(s[i], scale, __ldg(table + bucket * num_heads));
    }
  }
}

/// The running maximum and sum of this thread's two rows. The sum is this thread's part until
/// inverse_sum adds up the parts of the four lanes that share the rows.
struct Softmax {
  float maximum[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};

  /// Turns scores into exp2(scale * (s - maximum)) and updates maximum and sum. `rescale` receives
  /// the factors by which earlier results shrink. Maxima and sums are formed in four independent
  /// chains each, because one warp per scheduler must hide its own latency.
  template <int columns>
  __device__ void update(float* s, float scale, float (&rescale)[2]) {
    float top[4] = {s[0], s[1], s[2], s[3]};
    CUTE_UNROLL
    for (int i = 4; i < columns / 2; ++i) top[i % 4] = fmaxf(top[i % 4], s[i]);
    float offset[2];
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      float row_top = fmaxf(top[2 * r], top[2 * r + 1]);
      row_top = fmaxf(row_top, __shfl_xor_sync(~0u, row_top, 1));
      row_top = fmaxf(row_top, __shfl_xor_sync(~0u, row_top, 2));
      row_top = fmaxf(row_top, maximum[r]);
      // A row that has seen no key keeps the maximum -inf; subtracting 0 instead gives exp2(-inf) =
      // 0.
      const float base = row_top == -INFINITY ? 0.0f : row_top;
      offset[r] = __fmul_rn(base, scale);
      // The factor is exactly 1 where the maximum does not change. A key tile that a row does not
      // see therefore leaves the row's bits alone; kernels with larger query tiles meet more such
      // tiles.
      rescale[r] = exp2_approx(__fmul_rn(__fadd_rn(maximum[r], -base), scale));
      maximum[r] = row_top;
    }
    float partial[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    CUTE_UNROLL
    for (int i = 0; i < columns / 2; ++i) {
      s[i] = exp2_approx(__fmaf_rn(s[i], scale, -offset[i / 2 % 2]));
      partial[i % 4] = __fadd_rn(partial[i % 4], s[i]);
    }
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      sum[r] = __fmaf_rn(sum[r], rescale[r], __fadd_rn(partial[2 * r], partial[2 * r + 1]));
    }
  }

  /// Returns 1 / sum of this thread's two rows, and 0 for a row that saw no key.
  __device__ void inverse_sum(float (&inverse)[2]) const {
    for (int r = 0; r < 2; ++r) {
      float total = sum[r];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      inverse[r] = total == 0.0f ? 0.0f : 1.0f / total;
    }
  }
};

}  // namespace packhorse::cuda::sm90
