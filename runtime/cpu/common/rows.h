// Rows of tensors as the vector kernels take them, and the norm that ends a dense layer.
#pragma once

#include "cpu/isa/kernels.h"
#include "ops/args.h"

namespace packhorse::cpu {

/// The index of a dtype in the arrays of Kernels.
inline int index_of(DType dtype) { return dtype == DType::kBFloat16 ? 1 : 0; }
NormParams params_of(const NormWeight& norm);
/// Makes the task for `rows` rows from `first_row` on. The caller fills in x.
NormRows norm_task(const TensorView& residual, const NormWeight& norm, const TensorView& out,
                   int64_t first_row, int64_t rows);

inline char* row_at(const TensorView& view, int64_t row) {
  return view.as<char>() + static_cast<size_t>(row * view.row_stride) * size_of(view.dtype);
}

/// The optional last step of a dense layer: out = norm(residual + sums).
struct RowsEnd {
  TensorView residual;  // or empty
  NormWeight norm;      // or none
  TensorView out;

  /// Whether there is anything to do. If so, `sums` is a float32 buffer; otherwise the dense layer
  /// writes to `out` itself.
  explicit operator bool() const { return residual || norm; }
  /// Computes `rows` rows of `out` from `first_row` on. `sums` is [rows, columns of out],
  /// contiguous.
  void run(const float* sums, int64_t first_row, int64_t rows, const Kernels& kernels) const;
};

}  // namespace packhorse::cpu
