// Rows with their columns in another order, as the input of a dense layer whose weight has an order
// of its own (LinearWeight::input_order).
#pragma once

#include <cstdint>

#include "cuda/device/stream.h"

namespace packhorse::cuda {

/// out[i, j] = x[i, order[j]] for i < *row_count; the other rows of `out` stay as they are. `out`
/// may not overlap x.
struct OrderColumnsParams {
  const void* x = nullptr;  // 16-bit elements, rows x_stride elements apart
  int64_t x_stride = 0;
  const int32_t* order = nullptr;  // [columns], aligned to 16 bytes: each a column of x
  void* out = nullptr;             // [rows, columns], contiguous and aligned to 16 bytes
  int64_t rows = 0;
  int64_t columns = 0;                 // a multiple of 8
  const int32_t* row_count = nullptr;  // [1] in device memory; null: all rows
};

/// Asynchronous on `stream`, allocates nothing, may be captured into a graph. `order` may be read
/// while the kernels before this one still run. Throws RuntimeError.
void launch_order_columns(const OrderColumnsParams& params, const KernelStream& stream);

}  // namespace packhorse::cuda
