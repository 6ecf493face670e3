// Checks of the operators that only models of images ask for.
#include "core/format.h"
#include "ops/checks.h"
#include "ops/ops.h"

namespace packhorse {

void Ops::embed_patches(const EmbedPatchesArgs& args) {
  const char* op = "embed_patches";
  const int64_t columns = args.x.columns();
  check_compute_dtype(op, "x", args.x);
  check_matrix(op, "out", args.out, args.batch.num_tokens, columns);
  check_dtype_is(op, "out", args.out, args.x.dtype);
  check_batch(op, "batch", args.batch, args.out.rows());
  if (args.prefix) {
    check_matrix(op, "prefix", args.prefix, args.prefix.rows(), columns);
    check_dtype_is(op, "prefix", args.prefix, args.x.dtype);
  }
  if (const GridTable& positions = args.positions; positions.table) {
    check_matrix(op, "positions", positions.table, positions.rows * positions.columns, columns);
    check_dtype_is(op, "positions", positions.table, args.x.dtype);
  }
  if (args.batch.num_tokens == 0) return;
  if (args.grids == nullptr) fail(op, "grids are missing");
  do_embed_patches(args);
}

void Ops::probe_attention(const ProbeAttentionArgs& args) {
  const char* op = "probe_attention";
  const int64_t columns = args.keys.columns();
  check_compute_dtype(op, "keys", args.keys);
  check_batch(op, "batch", args.batch, args.keys.rows());
  check_matrix(op, "keys", args.keys, args.batch.num_tokens, columns);
  check_matrix(op, "values", args.values, args.batch.num_tokens, columns);
  check_matrix(op, "out", args.out, args.batch.num_sequences, columns);
  check_dtype_is(op, "values", args.values, args.keys.dtype);
  check_dtype_is(op, "out", args.out, args.keys.dtype);
  if (args.query == nullptr) fail(op, "query is missing");
  if (args.num_heads < 1 || args.head_dim < 1 || args.head_dim > kMostProbeColumns ||
      args.num_heads * args.head_dim > columns) {
    fail(op, concat(args.num_heads, " heads of ", args.head_dim, ", expected heads of 1 to ",
                    kMostProbeColumns, " columns, all of them within ", columns));
  }
  if (args.batch.num_sequences > 0) do_probe_attention(args);
}

}  // namespace packhorse
