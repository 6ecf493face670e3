// Turns the arguments of operators into those of kernels, and checks what CUDA needs of them.
#include "cuda/params.h"

#include <limits>
#include <utility>

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse::cuda {
namespace {

// Fills in the parameters that layers of all dtypes have; the caller has checked the dtypes.
GemmParams dense_params(const char* op, const TensorView& x, const LinearWeight& weight,
                        Activation activation, const TensorView& residual, const TensorView& out,
                        const int32_t* row_count, int sm_count) {
  check_vectors(op, "x", x);
  check_vectors(op, "residual", residual);
  check_vectors(op, "out", out);
  GemmParams params;
  params.a = x.data;
  params.lda = x.row_stride;
  params.weight = weight.data;
  params.bias = weight.bias;
  params.residual = residual.data;
  params.ldr = residual.row_stride;
  params.out = out.data;
  params.ldo = out.row_stride;
  params.rows = to_int32(op, "rows", x.rows());
  params.row_count = row_count;
  params.n = to_int32(op, "out_features", weight.out_features);
  params.k = to_int32(op, "in_features", weight.in_features);
  params.activation = activation;
  params.sm_count = sm_count;
  return params;
}

// Pages of keys or of values. Their rows need not be whole 16-byte accesses where they are kFloat8:
// those of a head are one array.
void check_pages(const char* op, const char* name, const TensorView& pages) {
  const int64_t rows = pages.rows() / kPageTokens;
  check_vectors(op, name, {pages.data, pages.dtype, rows, kPageTokens * pages.columns()});
}

}  // namespace

void check_compute(const char* op, DType dtype) {
  if (dtype == DType::kFloat16 || dtype == DType::kBFloat16) return;
  throw InvalidArgument(concat(op, ": found ", name_of(dtype), ", CUDA runs float16 or bfloat16"));
}

void check_vectors(const char* op, const char* name, const TensorView& view) {
  if (!view || view.columns() == 0) return;
  const int64_t multiple = view.dtype == DType::kFloat8 ? kFloat8Multiple : kMultiple;
  if (view.columns() % multiple == 0 && view.row_stride % multiple == 0 &&
      reinterpret_cast<uintptr_t>(view.data) % 16 == 0) {
    return;
  }
  throw InvalidArgument(concat(op, ": ", name, " is ", view.describe(), " with rows ",
                               view.row_stride, " elements apart at address ", view.data,
                               ": CUDA needs columns and strides that are multiples of ", multiple,
                               " and an address that is one of 16"));
}

int32_t to_int32(const char* op, const char* name, int64_t value) {
  if (value > std::numeric_limits<int32_t>::max()) {
    throw InvalidArgument(concat(op, ": ", name, " is ", value, ", at most ",
                                 std::numeric_limits<int32_t>::max(), " are supported"));
  }
  return static_cast<int32_t>(value);
}

GemmParams gemm_params(const char* op, const TensorView& x, const LinearWeight& weight,
                       Activation activation, const TensorView& residual, const TensorView& out,
                       const int32_t* row_count, int sm_count) {
  check_compute(op, x.dtype);
  if (weight.groups && x.dtype != DType::kFloat16) {
    throw InvalidArgument(
        concat(op, ": x is ", name_of(x.dtype), ", weights in groups take float16 on CUDA"));
  }
  GemmParams params = dense_params(op, x, weight, activation, residual, out, row_count, sm_count);
  params.dtype = x.dtype;
  params.groups = weight.groups;
  if (weight.skinny && !weight.groups) params.parts = split_k(params.n, params.k, sm_count);
  return params;
}

GemmParams float8_params(const char* op, const TensorView& x, const Float8Scales& x_scales,
                         const LinearWeight& weight, Activation activation,
                         const TensorView& residual, const TensorView& out, float out_scale,
                         const int32_t* row_count, int sm_count) {
  if (out.dtype != DType::kFloat8) check_compute(op, out.dtype);
  GemmParams params = dense_params(op, x, weight, activation, residual, out, row_count, sm_count);
  params.dtype = out.dtype;
  const auto* packed = static_cast<const unsigned char*>(weight.data);
  params.float8.column_scales = reinterpret_cast<const float*>(
      packed + float8_scales_offset(weight.in_features, weight.out_features));
  params.float8.row_scales = x_scales.rows;
  params.float8.a_scale = x_scales.tensor;
  if (out.dtype == DType::kFloat8) params.float8.out_factor = 1 / out_scale;
  return params;
}

AttentionParams attention_params(const AttentionArgs& args, int sm_count) {
  const char* op = "attention";
  check_compute(op, args.q.dtype);
  for (auto [name, view] : {std::pair{"q", &args.q},
                            {"k", &args.k},
                            {"v", &args.v},
                            {"out", &args.out},
                            {"position_keys", &args.term.position_keys},
                            {"position_queries", &args.term.position_queries}}) {
    check_vectors(op, name, *view);
  }
  AttentionParams params;
  params.q = args.q.data;
  params.k = args.k.data;
  params.v = args.v.data;
  params.out = args.out.data;
  params.q_row_stride = args.q.row_stride;
  params.k_row_stride = args.k.row_stride;
  params.v_row_stride = args.v.row_stride;
  params.out_row_stride = args.out.row_stride;
  params.cu_seqlens_q = args.queries.cu_seqlens;
  params.cu_seqlens_k = args.keys.cu_seqlens;
  params.counts = args.queries.counts;
  params.num_sequences = to_int32(op, "num_sequences", args.queries.num_sequences);
  params.num_tokens_q = to_int32(op, "num_tokens", args.queries.num_tokens);
  params.num_tokens_k = to_int32(op, "num_tokens", args.keys.num_tokens);
  params.max_seqlen_q = to_int32(op, "max_seqlen", args.queries.max_seqlen);
  params.max_seqlen_k = to_int32(op, "max_seqlen", args.keys.max_seqlen);
  params.min_seqlen_q = to_int32(op, "min_seqlen", args.queries.min_seqlen);
  params.num_heads = args.num_heads;
  params.num_kv_heads = args.num_kv_heads;
  params.head_dim = args.head_dim;
  params.scale = args.scale;
  params.mask = args.mask;
  params.term = args.term;
  params.dtype = args.q.dtype;
  if (args.out.dtype == DType::kFloat8) params.out_factor = 1 / args.out_scale;
  params.sm_count = sm_count;
  return params;
}

void check_append_kv_cache(const AppendKvCacheArgs& args) {
  const char* op = "append_kv_cache";
  check_compute(op, args.k.dtype);
  check_vectors(op, "k", args.k);
  check_vectors(op, "v", args.v);
  check_pages(op, "keys", args.pages.keys);
  check_pages(op, "values", args.pages.values);
  if (args.pages.keys.dtype != args.k.dtype && args.pages.keys.dtype != DType::kFloat8) {
    throw InvalidArgument(concat("append_kv_cache: pages are ", name_of(args.pages.keys.dtype),
                                 ", keys are ", name_of(args.k.dtype)));
  }
}

PagedAttentionParams paged_attention_params(const AttentionArgs& args, int sm_count) {
  const char* op = "attention";
  check_compute(op, args.q.dtype);
  check_vectors(op, "q", args.q);
  check_vectors(op, "out", args.out);
  check_pages(op, "pages.keys", args.pages.keys);
  check_pages(op, "pages.values", args.pages.values);
  if (args.head_dim > 256) {
    throw InvalidArgument(concat("attention: head_dim ", args.head_dim, " is over 256"));
  }
  const bool float8 = args.pages.keys.dtype == DType::kFloat8;
  if (args.pages.keys.dtype != args.q.dtype && !float8) {
    throw InvalidArgument(concat("attention: pages are ", name_of(args.pages.keys.dtype),
                                 ", queries are ", name_of(args.q.dtype)));
  }
  PagedAttentionParams params;
  if (args.k) check_append_kv_cache(appended(args));
  if (args.k && !float8) {
    params.new_keys = args.k.data;
    params.new_values = args.v.data;
    params.new_key_stride = args.k.row_stride;
    params.new_value_stride = args.v.row_stride;
  }
  params.q = args.q.data;
  params.out = args.out.data;
  params.q_row_stride = args.q.row_stride;
  params.out_row_stride = args.out.row_stride;
  params.keys = args.pages.keys.data;
  params.values = args.pages.values.data;
  if (float8) {
    params.key_scales = args.pages.key_scales.as<const float>();
    params.value_scales = args.pages.value_scales.as<const float>();
  }
  params.table = args.pages.table;
  params.kv_lens = args.pages.kv_lens;
  params.cu_seqlens = args.queries.cu_seqlens;
  params.counts = args.queries.counts;
  params.table_stride = to_int32(op, "pages.table_stride", args.pages.table_stride);
  params.page_rows = args.pages.keys.rows();
  params.num_tokens = to_int32(op, "num_tokens", args.queries.num_tokens);
  params.num_sequences = to_int32(op, "num_sequences", args.queries.num_sequences);
  params.num_single = to_int32(op, "pages.num_single", args.pages.num_single);
  params.max_seqlen = to_int32(op, "max_seqlen", args.queries.max_seqlen);
  params.max_kv_len = to_int32(op, "pages.max_kv_len", args.pages.max_kv_len);
  params.num_heads = args.num_heads;
  params.num_kv_heads = args.num_kv_heads;
  params.head_dim = args.head_dim;
  params.scale = args.scale;
  params.soft_cap = args.soft_cap;
  params.mask = args.mask;
  if (args.term.kind == ScoreTermKind::kAlibi) params.slopes = args.term.slopes;
  params.dtype = args.q.dtype;
  params.sm_count = sm_count;
  return params;
}

NormParams norm_params(const NormArgs& args) {
  const char* op = "norm";
  check_compute(op, args.x.dtype);
  check_vectors(op, "x", args.x);
  check_vectors(op, "residual", args.residual);
  check_vectors(op, "added", args.added);
  check_vectors(op, "out", args.out);
  NormParams params;
  params.x = args.x.data;
  params.x_stride = args.x.row_stride;
  params.residual = args.residual.data;
  params.residual_stride = args.residual.row_stride;
  params.added = args.added.data;
  params.added_stride = args.added.row_stride;
  params.out = args.out.data;
  params.out_stride = args.out.row_stride;
  params.weight = args.norm;
  params.rows = to_int32(op, "rows", args.x.rows());
  params.columns = args.x.columns();
  params.row_count = args.row_count;
  params.dtype = args.x.dtype;
  return params;
}

}  // namespace packhorse::cuda
