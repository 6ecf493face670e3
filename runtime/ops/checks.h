// Checks that several operators have in common. The message of a failed check names the
// operator `op`, the argument `name`, what was found and what was expected. All of them throw
// InvalidArgument.
#pragma once

#include <cstdint>
#include <string>

#include "ops/args/attention.h"
#include "ops/args/dense.h"
#include "ops/args/lora.h"

namespace packhorse {

[[noreturn]] void fail(const char* op, const std::string& what);

void check_matrix(const char* op, const char* name, const TensorView& view, int64_t rows,
                  int64_t columns);
void check_contiguous(const char* op, const char* name, const TensorView& view);
void check_dtype_is(const char* op, const char* name, const TensorView& view, DType expected);
void check_compute_dtype(const char* op, const char* name, const TensorView& view);

/// `dtype` is the dtype of the input. With quantised weights it may be any dtype that the backend
/// computes in.
void check_weight(const char* op, const char* name, const LinearWeight& weight, int64_t in_features,
                  DType dtype);

/// Checks `residual` and `out` of linear and feed_forward: [rows, columns] in the input's dtype.
void check_result(const char* op, const TensorView& residual, const TensorView& out, int64_t rows,
                  int64_t columns, DType dtype);

/// Checks the dtype of an input of dense layers: one that is computed in, or kFloat8 with `scales`.
/// Returns the dtype that residual and result have to have: that of `out` if x is kFloat8.
DType check_dense_input(const char* op, const TensorView& x, const Float8Scales& scales,
                        const TensorView& out);

/// Checks rows in e4m3 that are asked for beside `rows` rows of `columns`; `possible` says whether
/// the operator has them here.
void check_quantized(const char* op, const Float8Rows& quantized, int64_t rows, int64_t columns,
                     bool possible);

void check_heads(const char* op, int64_t num_heads, int64_t num_kv_heads);
void check_head_dim(const char* op, int64_t head_dim, int64_t multiple);
void check_batch(const char* op, const char* name, const BatchView& batch, int64_t rows);

void check_linear(const char* op, const LinearArgs& args);
void check_lora(const char* op, const LoraArgs& args);
void check_pages(const char* op, const PagedKvCache& pages, const BatchView& batch,
                 int64_t num_kv_heads, int64_t head_dim);
void check_append_kv_cache(const char* op, const AppendKvCacheArgs& args);

/// Rows of queries, keys or both, and what turns them.
void check_rotated_heads(const char* op, const RopeArgs& heads, int64_t rows,
                         int64_t rotation_columns);

}  // namespace packhorse
