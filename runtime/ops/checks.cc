#include "ops/checks.h"

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {

void fail(const char* op, const std::string& what) {
  throw InvalidArgument(concat(op, ": ", what));
}

void check_matrix(const char* op, const char* name, const TensorView& view, int64_t rows,
                  int64_t columns) {
  if (view.rank == 2 && view.shape[0] == rows && view.shape[1] == columns &&
      (view.data != nullptr || view.size() == 0)) {
    return;
  }
  fail(op, concat(name, " is ", view.describe(), ", expected [", rows, ", ", columns, "]"));
}

void check_contiguous(const char* op, const char* name, const TensorView& view) {
  if (view.row_stride == view.columns() || view.rows() <= 1) return;
  fail(op,
       concat(name, " has rows ", view.row_stride, " elements apart, expected ", view.columns()));
}

void check_dtype_is(const char* op, const char* name, const TensorView& view, DType expected) {
  if (view.dtype != expected) {
    fail(op, concat(name, " is ", name_of(view.dtype), ", expected ", name_of(expected)));
  }
}

void check_compute_dtype(const char* op, const char* name, const TensorView& view) {
  if (view.dtype != DType::kFloat32 && view.dtype != DType::kFloat16 &&
      view.dtype != DType::kBFloat16) {
    fail(op,
         concat(name, " is ", name_of(view.dtype), ", expected one of float32, float16, bfloat16"));
  }
}

void check_weight(const char* op, const char* name, const LinearWeight& weight, int64_t in_features,
                  DType dtype) {
  if (weight.data == nullptr || weight.out_features <= 0) fail(op, concat(name, " is missing"));
  if (weight.in_features != in_features) {
    fail(op, concat(name, " takes ", weight.in_features, " features, the input has ", in_features));
  }
  if (weight.groups.ordered != (weight.input_order != nullptr)) {
    fail(op, concat(name, weight.groups.ordered ? " has no input_order, expected one"
                                                : " has an input_order, expected none"));
  }
  if (weight.dtype != DType::kInt8 && !weight.groups && !is_widened(weight.dtype, dtype) &&
      dtype != weight.dtype) {
    fail(op, concat(name, " is ", name_of(weight.dtype), ", the input is ", name_of(dtype)));
  }
}

void check_result(const char* op, const TensorView& residual, const TensorView& out, int64_t rows,
                  int64_t columns, DType dtype) {
  check_matrix(op, "out", out, rows, columns);
  check_dtype_is(op, "out", out, dtype);
  if (residual) {
    check_matrix(op, "residual", residual, rows, columns);
    check_dtype_is(op, "residual", residual, dtype);
  }
}

DType check_dense_input(const char* op, const TensorView& x, const Float8Scales& scales,
                        const TensorView& out) {
  if (x.dtype != DType::kFloat8) {
    check_compute_dtype(op, "x", x);
    return x.dtype;
  }
  if (x.rows() > 0 && scales.rows == nullptr && !(scales.tensor > 0)) {
    fail(op, "x is float8 and has no scales");
  }
  check_compute_dtype(op, "out", out);
  return out.dtype;
}

void check_quantized(const char* op, const Float8Rows& quantized, int64_t rows, int64_t columns,
                     bool possible) {
  if (!quantized) return;
  if (!possible) fail(op, "quantized is not for what else is asked for");
  check_matrix(op, "quantized", quantized.values, rows, columns);
  check_dtype_is(op, "quantized", quantized.values, DType::kFloat8);
  if (quantized.scales == nullptr && rows > 0) fail(op, "quantized has no scales");
}

void check_heads(const char* op, int64_t num_heads, int64_t num_kv_heads) {
  if (num_heads > 0 && num_kv_heads > 0 && num_heads % num_kv_heads == 0) return;
  fail(op, concat("num_heads ", num_heads, " is not a multiple of num_kv_heads ", num_kv_heads));
}

void check_head_dim(const char* op, int64_t head_dim, int64_t multiple) {
  if (head_dim > 0 && head_dim % multiple == 0) return;
  fail(op, concat("head_dim ", head_dim, " is not a positive multiple of ", multiple,
                  ", as this device needs"));
}

void check_batch(const char* op, const char* name, const BatchView& batch, int64_t rows) {
  if (batch.num_tokens != rows) {
    fail(op, concat(name, " has ", batch.num_tokens, " tokens, the tensor ", rows, " rows"));
  }
  if (batch.num_sequences < 0 || (batch.num_sequences > 0 && batch.cu_seqlens == nullptr)) {
    fail(op, concat(name, " has ", batch.num_sequences, " sequences and no cu_seqlens"));
  }
}

void check_rotated_heads(const char* op, const RopeArgs& heads, int64_t rows,
                         int64_t rotation_columns) {
  check_matrix(op, "q", heads.q, rows, int64_t{heads.num_heads} * heads.head_dim);
  check_matrix(op, "k", heads.k, rows, int64_t{heads.num_kv_heads} * heads.head_dim);
  if (heads.model_dim <= 0 || heads.model_dim > heads.head_dim) {
    fail(op, concat("model_dim is ", heads.model_dim, ", expected 1 to head_dim ", heads.head_dim));
  }
  if (!heads.rotation) return;
  check_matrix(op, "rotation", heads.rotation, rows, rotation_columns);
  check_dtype_is(op, "rotation", heads.rotation, DType::kFloat32);
  if (heads.dims <= 0 || heads.dims > heads.model_dim || heads.dims % 2 != 0) {
    fail(op, concat("dims is ", heads.dims, ", expected an even number up to ", heads.model_dim));
  }
}

}  // namespace packhorse
