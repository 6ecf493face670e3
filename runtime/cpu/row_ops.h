// Operators that process each row, or each sequence, by itself: embed, copy, rotate, norm, pool,
// cast.
#pragma once

#include "cpu/kernels.h"
#include "cpu/thread_pool.h"
#include "ops/args.h"
#include "ops/args/rowwise.h"

namespace packhorse::cpu {

/// The index of a dtype in the arrays of Kernels.
inline int index_of(DType dtype) { return dtype == DType::kBFloat16 ? 1 : 0; }
NormParams params_of(const NormWeight& norm);

inline char* row_at(const TensorView& view, int64_t row) {
  return view.as<char>() + static_cast<size_t>(row * view.row_stride) * size_of(view.dtype);
}

/// The optional last step of a dense layer: out = norm(residual + sums).
struct RowsEnd {
  TensorView residual;  // or empty
  NormWeight norm;      // or none
  TensorView out;

  /// Returns whether there is anything to do. If so, `sums` is a float32 buffer; otherwise the
  /// dense layer writes to `out` itself.
  explicit operator bool() const { return residual || norm; }
  /// Computes `rows` rows of `out` from `first_row` on. `sums` is [rows, columns of out],
  /// contiguous.
  void run(const float* sums, int64_t first_row, int64_t rows, const Kernels& kernels) const;
};

void embed(const EmbedArgs& args, const Kernels& kernels, ThreadPool& pool);
void unfold(const UnfoldArgs& args, ThreadPool& pool);
void rotation(const RotationArgs& args, ThreadPool& pool);
void rope(const RopeArgs& args, const Kernels& kernels, ThreadPool& pool);
void append_kv_cache(const AppendKvCacheArgs& args, const Kernels& kernels, ThreadPool& pool);
void norm(const NormArgs& args, const Kernels& kernels, ThreadPool& pool);
void pool_sequences(const PoolArgs& args, const Kernels& kernels, ThreadPool& pool);
void cast(const CastArgs& args, const Kernels& kernels, ThreadPool& pool);
void gather_rows(const GatherRowsArgs& args, ThreadPool& pool);
void clear_empty(const ClearEmptyArgs& args);

}  // namespace packhorse::cpu
