// Rows with their columns in another order, as the input of a dense layer whose weight has an order
// of its own (LinearWeight::input_order).
#pragma once

#include <cstdint>

#include "cuda/device/stream.h"
#include "packhorse/types.h"
namespace packhorse::cuda {

/// out[i, j] = x[i, order[j]] for i < *row_count, or for all rows where that is null; the other
/// rows of `out` stay as they are. x [rows, any] and out [rows, columns] are 16-bit and do not
/// overlap; columns are a multiple of 8, `order` [columns] holds columns of x, and out and order
/// are aligned to 16 bytes. Asynchronous on `stream`, allocates nothing, may be captured into a
/// graph. `order` may be read while the kernels before this one still run. Throws RuntimeError.
void launch_order_columns(const TensorView& x, const int32_t* order, const TensorView& out,
                          const int32_t* row_count, const KernelStream& stream);

}  // namespace packhorse::cuda
