// The host interface of dense layers on CUDA. Functions take raw pointers, sizes and a stream; Ops
// has checked all shapes before it calls them.
#pragma once

#include <cstdint>

#include "core/math.h"
#include "cuda/device/stream.h"
#include "cuda/gemm/gemm_config.h"
#include "cuda/gemm/split_k.h"
#include "ops/args/common.h"

namespace packhorse::cuda {

/// A rotation of neighbouring pairs of output columns (RoPE), as RopeArgs describes it.
struct GemmRotation {
  const float* positions = nullptr;    // [rows], or null: no rotation
  const float* frequencies = nullptr;  // [dims / 2]
  int32_t dims = 0;                    // number of columns of a head that are rotated
  int32_t head_dim = 0;                // a multiple of 8
  int32_t columns = 0;  // number of first columns of the output that belong to such heads
};

/// A maximum over the rows of each sequence, which is kept instead of the rows.
struct GemmPool {
  float* out = nullptr;                 // [num_sequences, columns], contiguous
  const int32_t* cu_seqlens = nullptr;  // [num_sequences + 1], the last at most `rows`
  int32_t num_sequences = 0;
  int32_t columns = 0;  // number of first columns that are pooled, at most n
};

/// Scales of a product of e4m3 matrices: of its operands, and of its result where that is e4m3,
/// too.
struct GemmFloat8 {
  const float* column_scales = nullptr;  // [n] of the weight's rows; null: 16-bit operands
  const float* row_scales = nullptr;     // [rows] of a; null: `a_scale` is that of all rows
  float a_scale = 0;
  float out_factor = 0;  // not 0: `out` is e4m3, the result times this
  explicit operator bool() const { return column_scales != nullptr; }
};

/// Offset in bytes of the row scales in a packed e4m3 weight.
inline size_t float8_scales_offset(int64_t in_features, int64_t out_features) {
  return static_cast<size_t>(round_up(in_features * out_features, 16));
}

/// The arguments of one dense layer:
///
/// out[r, n] = residual[r, n] + activation(sum_k a[r, k] * weight[n, k] + bias[n])
///
/// The Hopper kernels can also apply a gate or a rotation, before results are rounded. With
/// `gated`, the columns of the product alternate: kGateBlock columns of the gate, then kGateBlock
/// columns that it gates, and so on; out = activation(gate) * other is half as wide. With a
/// rotation, pairs of columns are rotated.
///
/// a, weight, residual and out share one 16-bit dtype; accumulation, bias and activation are in
/// float32. n, k and the row strides are multiples of 8 elements, and pointers are aligned to 16
/// bytes (TMA and 16-byte loads ask for it). A row's bits depend on that row, the weight, n and k
/// alone, since every tile sums over k in order, 16 elements at a time. With several `parts`
/// (split_k.h) each part is summed so, and the parts are added in ascending order. The portable
/// kernels have one part.
///
/// With `groups`, the weight is quantised in groups and packed as gemm/w4a16/layout.h says, not [n,
/// k]; all else is float16, and the sum over k is formed in the parts of W4a16Split.
///
/// With `float8`, a and weight are e4m3, the sum is multiplied by both scales before the bias is
/// added, `dtype` is that of residual and out, and k, and n of an e4m3 result, are multiples of 16.
/// Sums are formed 32 elements at a time, in the tensor cores' own precision.
struct GemmParams {
  const void* a = nullptr;         // [rows, k]
  int64_t lda = 0;                 // elements between the starts of rows
  const void* weight = nullptr;    // [n, k], contiguous
  const float* bias = nullptr;     // [n] or null
  const void* residual = nullptr;  // [rows, n] or null; may be `out`
  int64_t ldr = 0;
  void* out = nullptr;  // [rows, n]
  int64_t ldo = 0;
  /// The number of rows that exist in a, residual and out.
  int32_t rows = 0;
  /// Null, or the exact number of rows (at most `rows`) in device memory. A captured graph then
  /// computes only the tiles of those rows. The rows of `out` from there to `rows` may be
  /// overwritten.
  const int32_t* row_count = nullptr;
  int32_t n = 0;
  int32_t k = 0;
  DType dtype = DType::kFloat16;
  Activation activation = Activation::kNone;
  bool gated = false;  // n, the rows of the weight, is then a multiple of 2 kGateBlock
  GemmRotation rotation;
  GemmPool pool;
  int32_t sm_count = 0;
  int32_t parts = 1;  // parts of the sum over k (gemm/split_k.h); 1 with float8, groups and pooling
  GemmFloat8 float8;
  WeightGroups groups;
};

/// Returns the inputs of the choice of a kernel.
inline GemmShape shape_of(const GemmParams& params) {
  return {.rows = params.rows,
          .n = params.n,
          .k = params.k,
          .counted = params.row_count != nullptr,
          // The activation of a gate applies to half the columns only, and its time is hidden.
          .activated = params.activation != Activation::kNone && !params.gated,
          .least_columns = params.gated ? 2 * kGateBlock : 0,
          .in_parts = params.parts > 1};
}

/// Launches the Hopper kernel that is predicted to be the fastest, for devices of compute
/// capability 9.0 exactly. It is asynchronous on `stream`, allocates nothing, needs no workspace
/// and may be captured into a graph. The weight and the row count are read while kernels ahead of
/// this one may still run, so those kernels must not write them (cuda/common/launch.cuh, rule 3).
/// Throws RuntimeError.
void launch_gemm_sm90(const GemmParams& params, const KernelStream& stream);
/// Launches the Hopper kernel of `config`, for tuning and tests, by the rules above.
void launch_gemm_sm90(const GemmParams& params, const GemmConfig& config,
                      const KernelStream& stream);
/// Launches a dense layer that keeps only the maximum over the rows r of each sequence s, in
/// float32:
///
/// pool.out[s, n] = max(pool.out[s, n], sum_k a[r, k] * weight[n, k] + bias[n])
///
/// No matrix [rows, n] is ever stored. pool.out must hold numbers of 0 or more before, and a NaN
/// stays a NaN. A maximum does not depend on the order, so neither do the bits. `residual`, `out`,
/// `activation`, `gated` and `rotation` are not used; all else is as for launch_gemm_sm90.
void launch_gemm_pooled_sm90(const GemmParams& params, const KernelStream& stream);
/// Launches a product of e4m3 matrices (params.float8), by the rules of launch_gemm_sm90. A
/// residual excludes gate, rotation, activation and an e4m3 result; a gate asks for an e4m3 result.
void launch_gemm_float8(const GemmParams& params, const KernelStream& stream);
void launch_gemm_float8(const GemmParams& params, const GemmConfig& config,
                        const KernelStream& stream);
/// Launches a portable kernel, for compute capability 8.0 and later: asynchronous on `stream`,
/// without workspace; may be captured into a graph. It has no gate, no rotation and no parts.
/// Throws RuntimeError.
void launch_gemm_sm80(const GemmParams& params, const KernelStream& stream);

}  // namespace packhorse::cuda
