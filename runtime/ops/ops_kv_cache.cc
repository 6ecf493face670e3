// Checks of keys and values in pages.
#include <utility>

#include "core/format.h"
#include "ops/checks.h"
#include "ops/ops.h"

namespace packhorse {

void check_pages(const char* op, const PagedKvCache& pages, const BatchView& batch,
                 int64_t num_kv_heads, int64_t head_dim) {
  const int64_t page_rows = num_kv_heads * kPageTokens;
  for (auto [name, view] :
       {std::pair{"pages.keys", &pages.keys}, {"pages.values", &pages.values}}) {
    if (view->dtype != DType::kFloat8) check_compute_dtype(op, name, *view);
    check_dtype_is(op, name, *view, pages.keys.dtype);
    check_matrix(op, name, *view, pages.keys.rows(), head_dim);
    check_contiguous(op, name, *view);
    if (view->rows() % page_rows != 0) {
      fail(op, concat(name, " has ", view->rows(), " rows, expected a multiple of ", page_rows,
                      ": ", kPageTokens, " for each of ", num_kv_heads, " heads"));
    }
  }
  for (auto [name, view] : {std::pair{"pages.key_scales", &pages.key_scales},
                            {"pages.value_scales", &pages.value_scales}}) {
    if (pages.keys.dtype != DType::kFloat8) {
      if (*view) fail(op, concat(name, " are given, but the pages are not float8"));
      continue;
    }
    check_matrix(op, name, *view, pages.keys.rows() / kPageTokens, kPageTokens);
    check_dtype_is(op, name, *view, DType::kFloat32);
    check_contiguous(op, name, *view);
  }
  if (pages.max_kv_len < 0 || pages.max_kv_len > pages.table_stride * kPageTokens) {
    fail(op, concat("pages.max_kv_len is ", pages.max_kv_len, ", expected 0 to ",
                    pages.table_stride * kPageTokens, ", what ", pages.table_stride,
                    " pages of the table hold"));
  }
  if (pages.num_single < 0 || pages.num_single > batch.num_sequences) {
    fail(op, concat("pages.num_single is ", pages.num_single, ", expected 0 to ",
                    batch.num_sequences, ", the number of sequences"));
  }
  if (batch.num_tokens > 0 && (pages.table == nullptr || pages.kv_lens == nullptr)) {
    fail(op, concat("pages have no ", pages.table == nullptr ? "table" : "kv_lens", " for ",
                    batch.num_sequences, " sequences"));
  }
}

void check_append_kv_cache(const char* op, const AppendKvCacheArgs& args) {
  const int64_t columns = int64_t{args.num_kv_heads} * args.head_dim;
  check_compute_dtype(op, "k", args.k);
  check_dtype_is(op, "v", args.v, args.k.dtype);
  check_matrix(op, "k", args.k, args.batch.num_tokens, columns);
  check_matrix(op, "v", args.v, args.batch.num_tokens, columns);
  check_batch(op, "batch", args.batch, args.k.rows());
  check_pages(op, args.pages, args.batch, args.num_kv_heads, args.head_dim);
}

void Ops::append_kv_cache(const AppendKvCacheArgs& args) {
  const char* op = "append_kv_cache";
  if (args.num_kv_heads <= 0) {
    fail(op, concat("num_kv_heads is ", args.num_kv_heads, ", expected a positive number"));
  }
  check_head_dim(op, args.head_dim, head_dim_multiple());
  check_append_kv_cache(op, args);
  if (args.k.rows() > 0) do_append_kv_cache(args);
}

}  // namespace packhorse
