// Checks of compressed convolutional attention.
#include <algorithm>
#include <utility>

#include "core/format.h"
#include "ops/checks.h"
#include "ops/ops.h"

namespace packhorse {
namespace {

void check_convolutions(const char* op, const CcaArgs& args) {
  for (auto [name, width] : {std::pair{"depthwise_width", args.depthwise_width},
                             {"grouped_width", args.grouped_width}}) {
    if (width >= 1 && width <= kMostCca) continue;
    fail(op, concat(name, " is ", width, ", expected 1 to ", kMostCca));
  }
  const int64_t heads = int64_t{args.num_heads} + args.num_kv_heads;
  check_matrix(op, "grouped", args.grouped, heads * args.grouped_width * args.head_dim,
               args.head_dim);
  check_contiguous(op, "grouped", args.grouped);
  check_dtype_is(op, "grouped", args.grouped, args.latents.dtype);
  if (args.depthwise == nullptr || args.depthwise_bias == nullptr || args.grouped_bias == nullptr ||
      args.temperature == nullptr) {
    fail(op, "a weight, a bias or the temperature is missing");
  }
  if (args.delayed_column < 0 || args.delayed_column > args.value_columns()) {
    fail(op, concat("delayed_column is ", args.delayed_column, ", expected 0 to ",
                    args.value_columns(), ", the columns of values"));
  }
}

void check_latent_pages(const char* op, const CcaArgs& args) {
  const LatentPages& pages = args.pages;
  const int64_t fewest = std::max<int64_t>(1, args.reach());
  if (pages.slots < fewest || pages.slots > kPageTokens) {
    fail(op, concat("pages.slots is ", pages.slots, ", expected ", fewest, " to ", kPageTokens));
  }
  check_matrix(op, "pages.rows", pages.rows, pages.rows.rows(), args.state_columns());
  check_dtype_is(op, "pages.rows", pages.rows, args.latents.dtype);
  if (args.batch.num_tokens > 0 && (pages.table == nullptr || pages.kv_lens == nullptr)) {
    fail(op, "pages have no table or no kv_lens");
  }
}

}  // namespace

void Ops::cca(const CcaArgs& args) {
  const char* op = "cca";
  check_heads(op, args.num_heads, args.num_kv_heads);
  check_head_dim(op, args.head_dim, head_dim_multiple());
  check_compute_dtype(op, "latents", args.latents);
  check_batch(op, "batch", args.batch, args.latents.rows());
  RopeArgs heads;
  heads.q = args.latents.column_slice(0, int64_t{args.num_heads} * args.head_dim);
  heads.k = args.latents.column_slice(heads.q.columns(), args.value_columns());
  heads.num_heads = args.num_heads;
  heads.num_kv_heads = args.num_kv_heads;
  heads.head_dim = args.head_dim;
  heads.model_dim = args.model_dim;
  heads.rotation = args.rotation;
  heads.dims = args.dims;
  check_matrix(op, "latents", args.latents, args.latents.rows(),
               args.mixed_columns() + args.value_columns());
  check_rotated_heads(op, heads, args.latents.rows(), rotation_columns(args.dims, false));
  check_convolutions(op, args);
  if (args.pages) check_latent_pages(op, args);
  check_matrix(op, "out", args.out, args.latents.rows(), args.latents.columns());
  check_dtype_is(op, "out", args.out, args.latents.dtype);
  if (args.latents.rows() > 0) do_cca(args);
}

}  // namespace packhorse
