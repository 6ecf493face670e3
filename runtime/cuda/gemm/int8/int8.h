// Dense layers with int8 weights and inputs quantised to uint8, for compute capability 8.0 and
// later.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/common/int8_rows.h"
#include "cuda/device/stream.h"
#include "ops/args/dense.h"
#include "packhorse/types.h"

#if defined(__CUDACC__)
#define PACKHORSE_INT8_FUNCTION __host__ __device__ __forceinline__
#else
#define PACKHORSE_INT8_FUNCTION inline
#endif

namespace packhorse::cuda {

/// Layout of a packed weight, offsets in bytes: int8 [out_features, padded_int8(in_features)],
/// padded by zeros; float32 scales [out_features] of the rows; and float32 factors [out_features]
/// of an input row's offset, each scale * sum of the row's integers.
struct Int8Layout {
  constexpr Int8Layout(int64_t in_features, int64_t out_features)
      : columns(padded_int8(in_features)),
        scales(static_cast<size_t>(columns * out_features)),
        sums(scales + static_cast<size_t>(out_features) * sizeof(float)),
        bytes(sums + static_cast<size_t>(out_features) * sizeof(float)) {}
  int64_t columns;
  size_t scales, sums, bytes;
};

/// Returns an element of the product, before the activation. `sum`: the sum of products of integers
/// over its row of the input and its row of the weight.
PACKHORSE_INT8_FUNCTION float dequantized(int32_t sum, float row_scale, float row_offset,
                                          float column_scale, float column_sum, float bias) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(__int2float_rn(sum), __fmul_rn(row_scale, column_scale),
                   __fmaf_rn(row_offset, column_sum, bias));
#else
  return __builtin_fmaf(static_cast<float>(sum), row_scale * column_scale,
                        __builtin_fmaf(row_offset, column_sum, bias));
#endif
}

/// out[r, n] = residual[r, n] + activation(dequantized(sum_k rows[r, k] * weight[n, k], ...)),
/// where `rows` has x as bytes and the weight is packed by Int8Layout.
///
/// Sums are exact, so a row's bits depend on that row and the weight alone, whatever the tiles.
/// out_features and the strides of residual and out are multiples of 8 elements, and pointers are
/// aligned to 16 bytes. Rows of `out` beyond *row_count may be overwritten. args.norm is ignored.
/// Asynchronous on `stream`, allocates nothing, may be captured into a graph. Throws RuntimeError.
void launch_gemm_int8(const LinearArgs& args, const RowBytes& rows, const KernelStream& stream);

}  // namespace packhorse::cuda
