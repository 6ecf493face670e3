// The kernel of quantize_rows.h. A group of threads holds a row in registers, so that it is read
// once. Minimum and maximum do not depend on the order, and the elements of a row share nothing
// else, so a row's bytes are the same whatever the group.
#pragma once

#include <cmath>

#include "cuda/common/launch.cuh"
#include "cuda/rowwise/row.cuh"
#include "cuda/rowwise/rowwise.h"

namespace packhorse::cuda {

/// Minimum and maximum of some elements of a row, and whether all of these are finite.
struct RowExtent {
  float low;
  float high;
  bool finite;

  __device__ void take(float x) {
    low = fminf(low, x);
    high = fmaxf(high, x);
    finite = finite && fabsf(x) < INFINITY;
  }
  __device__ void take(const RowExtent& other) {
    low = fminf(low, other.low);
    high = fmaxf(high, other.high);
    finite = finite && other.finite;
  }
};

/// Returns the extent over the group of kThreads threads: one warp, or the whole block. `scratch`
/// has room for one extent of each warp of a block.
template <int kThreads>
__device__ RowExtent group_extent(RowExtent mine, RowExtent* scratch) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    mine.take({__shfl_xor_sync(kFullWarp, mine.low, mask),
               __shfl_xor_sync(kFullWarp, mine.high, mask),
               __shfl_xor_sync(kFullWarp, static_cast<int>(mine.finite), mask) != 0});
  }
  if constexpr (kThreads > 32) {
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = mine;
    __syncthreads();
    for (int warp = 0; warp < kThreads / 32; ++warp) mine.take(scratch[warp]);
  }
  return mine;
}

/// Turns a row's elements into bytes, by the arithmetic of the CPU's kernel (int8_kernels.inc).
struct ByteRange {
  float scale, offset, inverse, start;

  __device__ explicit ByteRange(const RowExtent& extent) {
    const float range = __fadd_rn(extent.high, -extent.low);
    const float poison = extent.finite ? __fmul_rn(range, 0.0f) : NAN;
    const bool spread = range > 1e-30f && poison == 0.0f;
    scale = spread ? __fdiv_rn(range, 255.0f) : poison;
    offset = poison == 0.0f ? extent.low : poison;
    inverse = spread ? __fdiv_rn(255.0f, range) : 0.0f;
    start = spread ? extent.low : 0.0f;
  }

  __device__ uint32_t byte(float x) const {
    constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: the low bits of a sum hold the integer
    return __float_as_uint(__fmaf_rn(__fadd_rn(x, -start), inverse, kMagic)) & 0xffu;
  }
};

/// The threads of a block. Groups of one warp share a block.
template <int kThreads>
inline constexpr int kQuantizeThreads = kThreads < 128 ? 128 : kThreads;

/// A group of kThreads threads takes one row of up to kThreads * kVectors * 8 columns.
template <class T, int kThreads, int kVectors>
__global__ void __launch_bounds__(kQuantizeThreads<kThreads>)
    quantize_rows_kernel(const __grid_constant__ TensorView x, RowBytes out,
                         const int32_t* row_count) {
  constexpr int kGroups = kQuantizeThreads<kThreads> / kThreads;
  __shared__ RowExtent scratch[kQuantizeThreads<kThreads> / 32];
  const int64_t row = int64_t{blockIdx.x} * kGroups + static_cast<int>(threadIdx.x) / kThreads;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t rows =
      row_count == nullptr ? x.shape[0] : min(x.shape[0], static_cast<int64_t>(*row_count));
  if (row >= rows) return;  // true for whole groups only: a block of one group, or a warp
  const int columns = static_cast<int>(x.shape[1]);
  Row<T, kThreads, kVectors, 1> own;
  own.load(0, static_cast<const T*>(x.data) + row * x.row_stride, columns);
  RowExtent extent = {INFINITY, -INFINITY, true};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (own.column(v) >= columns) continue;
    float values[kVectorSize];
    own.get(v, values);
#pragma unroll
    for (const float value : values) extent.take(value);
  }
  extent = group_extent<kThreads>(extent, scratch);
  const ByteRange bytes(extent);
  if (threadIdx.x % kThreads == 0) {
    out.scales[row] = bytes.scale;
    out.offsets[row] = bytes.offset;
  }
  const int64_t padded = padded_int8(columns);
  uint8_t* to = out.values + row * padded;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = own.column(v);
    if (column >= padded) continue;
    uint2 packed = {0, 0};
    if (column < columns) {
      float values[kVectorSize];
      own.get(v, values);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        packed.x |= bytes.byte(values[i]) << (8 * i);
        packed.y |= bytes.byte(values[i + 4]) << (8 * i);
      }
    }
    *reinterpret_cast<uint2*>(to + column) = packed;
  }
}

}  // namespace packhorse::cuda
