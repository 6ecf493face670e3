// Rows of tensors as the vector kernels take them: how operators go over them, and the norm that
// ends a dense layer.
#pragma once

#include <algorithm>

#include "core/math.h"
#include "cpu/common/profile.h"
#include "cpu/isa/kernels.h"
#include "cpu/threads/thread_pool.h"
#include "ops/args/rowwise.h"

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

/// Calls body(first, end) for slices of [0, rows), in parallel. A slice is worth claiming, and
/// small enough to spread over threads.
template <class Body>
void for_rows(int64_t rows, ThreadPool& pool, Body body, CpuPart part = CpuPart::kOther) {
  constexpr int64_t kTaskRows = 32;
  pool.parallel_for(ceil_div(rows, kTaskRows), [&](int64_t task, int) {
    const CpuTimer timer(part);
    body(task * kTaskRows, std::min(rows, (task + 1) * kTaskRows));
  });
}

/// Calls body(row) for each of them, in parallel.
template <class Body>
void for_each_row(int64_t rows, ThreadPool& pool, Body body) {
  for_rows(rows, pool, [&](int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) body(row);
  });
}

/// Calls body(token, sequence) for the tokens of a batch, in parallel: `sequence` points to the
/// token's sequence in cu_seqlens.
template <class Body>
void for_tokens(const BatchView& batch, ThreadPool& pool, Body body) {
  for_rows(batch.num_tokens, pool, [&](int64_t first, int64_t end) {
    const int32_t* sequence =
        std::upper_bound(batch.cu_seqlens, batch.cu_seqlens + batch.num_sequences + 1, first) - 1;
    for (int64_t token = first; token < end; ++token) {
      while (sequence[1] <= token) ++sequence;
      body(token, sequence);
    }
  });
}

/// The optional last step of a dense layer: out = norm(residual + sums).
struct RowsEnd {
  TensorView residual;  // or empty
  NormWeight norm;      // or none
  TensorView out;

  /// True if there is anything to do. Then `sums` is a float32 buffer; otherwise the dense layer
  /// writes to `out` itself.
  explicit operator bool() const { return residual || norm; }
  /// Computes `rows` rows of `out` from `first_row` on. `sums` is [rows, columns of out],
  /// contiguous.
  void run(const float* sums, int64_t first_row, int64_t rows, const Kernels& kernels) const;
};

}  // namespace packhorse::cpu
