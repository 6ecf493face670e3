// (x + residual) + LayerNorm or RMSNorm over packed rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/args.h"

namespace packhorse::cuda {

/// out[r] = norm(x[r] + residual[r]) + added[r]; 16-bit rows of any multiple of 8 columns, statistics in
/// float32. Strides in elements, multiples of 8; pointers of 16 bytes, gamma and beta too. `out`
/// may be `x`, `residual` or `added`.
struct NormParams {
  const void* x = nullptr;
  int64_t x_stride = 0;
  const void* residual = nullptr;  // or null
  int64_t residual_stride = 0;
  const void* added = nullptr;  // or null
  int64_t added_stride = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
  NormWeight weight;
  int64_t rows = 0;
  int64_t columns = 0;
  const int32_t* row_count = nullptr;  // exact number of rows in device memory, or null
  DType dtype = DType::kFloat16;
};

void launch_norm(const NormParams& params, cudaStream_t stream);

}  // namespace packhorse::cuda
