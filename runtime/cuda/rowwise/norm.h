// LayerNorm and RMSNorm over packed rows, after an optional residual is added.
#pragma once

#include <cstdint>

#include "cuda/device/stream.h"
#include "ops/args.h"

namespace packhorse::cuda {

/// out[r] = norm(x[r] + residual[r]) + added[r], with statistics in float32. Rows are 16-bit and
/// have any number of columns that is a multiple of 8. Strides are in elements and multiples of 8;
/// pointers, those of gamma and beta too, are aligned to 16 bytes. `out` may be `x`, `residual` or
/// `added`.
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

void launch_norm(const NormParams& params, const KernelStream& stream);

}  // namespace packhorse::cuda
