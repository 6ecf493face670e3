// Activations as bytes: each row is offset + scale * q with q from 0 to 255, as in int8 on the CPU.
#pragma once

#include <cstdint>

#include "cuda/common/int8_rows.h"
#include "cuda/device/stream.h"
#include "packhorse/types.h"

namespace packhorse::cuda {

/// offset is the smallest element of the row, scale = (largest - smallest) / 255, q = (x - offset)
/// / scale rounded to nearest, ties to even. A row of equal elements has the scale 0; one with an
/// element that is not finite has NaN as scale and offset.
struct QuantizeRowsParams {
  const void* x = nullptr;  // [rows, columns] float16 or bfloat16, aligned to 16 bytes
  int64_t x_stride = 0;     // in elements, a multiple of 8
  int64_t rows = 0;
  int64_t columns = 0;                 // a multiple of 8, at most kMostInt8Columns
  const int32_t* row_count = nullptr;  // [1] exact number of rows, in device memory, or null
  uint8_t* values = nullptr;           // [rows, padded_int8(columns)]; the padding becomes zeros
  float* scales = nullptr;             // [rows]
  float* offsets = nullptr;            // [rows]
  DType dtype = DType::kFloat16;
};

/// Asynchronous on `stream`; allocates nothing. Throws RuntimeError.
void launch_quantize_rows(const QuantizeRowsParams& params, const KernelStream& stream);

}  // namespace packhorse::cuda
