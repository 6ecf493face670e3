// Dense layers on CUDA: raw pointers, sizes, a stream. Shapes are checked by Ops, not here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/gemm/gemm_config.h"
#include "ops/args.h"

namespace packhorse::cuda {

/// Turns pairs of neighbouring columns, as RotateHeadsArgs says.
struct GemmRotation {
  const float* positions = nullptr;    // [rows], or null: no rotation
  const float* frequencies = nullptr;  // [dims / 2]
  int32_t dims = 0;                    // columns of a head that are rotated
  int32_t head_dim = 0;                // a multiple of 8
  int32_t columns = 0;                 // of the output, that belong to such heads
};

/// Rows pooled over sequences instead of stored.
struct GemmPool {
  float* out = nullptr;                 // [num_sequences, columns], contiguous
  const int32_t* cu_seqlens = nullptr;  // [num_sequences + 1], the last at most `rows`
  int32_t num_sequences = 0;
  int32_t columns = 0;  // at most n: those after them are not asked for
};

/// out[r, n] = residual[r, n] + activation(sum_k a[r, k] * weight[n, k] + bias[n])
///
/// On Hopper, alone of these: with `gated`, kGateBlock columns of the product are the gate, as many
/// are what it is for, and so on in turn, and out = activation(gate) * other, half as wide; with a
/// rotation, pairs of columns are turned. Both before anything is rounded.
///
/// 16-bit `a`, `weight`, `residual`, `out` of one dtype; float32 accumulation, bias and activation.
/// n, k and the leading dimensions are multiples of 8, pointers of 16 bytes (TMA and 16-byte
/// loads). A row's bits depend on that row, the weight, n and k alone: k is summed in order, 16 at
/// a time, whatever the tile.
struct GemmParams {
  const void* a = nullptr;         // [rows, k]
  int64_t lda = 0;                 // elements between rows
  const void* weight = nullptr;    // [n, k], contiguous
  const float* bias = nullptr;     // [n] or null
  const void* residual = nullptr;  // [rows, n] or null; may be `out`
  int64_t ldr = 0;
  void* out = nullptr;  // [rows, n]
  int64_t ldo = 0;
  /// Rows that exist in a, residual and out.
  int32_t rows = 0;
  /// Null, or the exact number of rows (at most `rows`) in device memory: a captured graph then
  /// computes the real tiles only. Rows of `out` from there to `rows` may be overwritten.
  const int32_t* row_count = nullptr;
  int32_t n = 0;
  int32_t k = 0;
  DType dtype = DType::kFloat16;
  Activation activation = Activation::kNone;
  bool gated = false;  // n, of the weight, is then a multiple of 2 kGateBlock
  GemmRotation rotation;
  GemmPool pool;
  int32_t sm_count = 0;
};

/// What the choice of a kernel knows of a launch.
inline GemmShape shape_of(const GemmParams& params) {
  return {.rows = params.rows,
          .n = params.n,
          .k = params.k,
          .counted = params.row_count != nullptr,
          // That of a gate is of half the columns, and hides.
          .activated = params.activation != Activation::kNone && !params.gated,
          .least_columns = params.gated ? 2 * kGateBlock : 0};
}

/// Asynchronous on `stream`; allocates nothing, needs no workspace, may be captured in a graph.
/// Weight and row count are read while kernels ahead finish: those must not write them
/// (cuda/launch.cuh, rule 3). Throws RuntimeError. For devices of compute capability 9.0 exactly.
void launch_gemm_sm90(const GemmParams& params, cudaStream_t stream);
/// With a kernel of the caller's choice (tuning, tests).
void launch_gemm_sm90(const GemmParams& params, const GemmConfig& config, cudaStream_t stream);
/// pool.out[s, n] = max(pool.out[s, n], sum_k a[r, k] * weight[n, k] + bias[n]) over the rows r of
/// sequence s, in float32: no [rows, n] is ever stored. pool.out is 0 or more before; a NaN stays.
/// A maximum does not depend on order, so neither do bits. `residual`, `out`, `activation`, `gated`
/// and `rotation` are not used; else as launch_gemm_sm90.
void launch_gemm_pooled_sm90(const GemmParams& params, cudaStream_t stream);
/// launch_gemm_sm90 for compute capability 8.0 and up.
void launch_gemm_sm80(const GemmParams& params, cudaStream_t stream);

}  // namespace packhorse::cuda
