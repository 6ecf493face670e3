// Checks of the operators that treat each row, or each sequence, by itself.
#include <utility>

#include "core/format.h"
#include "ops/checks.h"
#include "ops/ops.h"

namespace packhorse {

void Ops::embed(const EmbedArgs& args) {
  const char* op = "embed";
  const bool packed = args.packed_word.data != nullptr;
  const int64_t hidden_size = packed ? args.packed_word.in_features : args.word.columns();
  const int64_t tokens = args.batch.num_tokens;
  check_compute_dtype(op, "out", args.out);
  check_matrix(op, "out", args.out, tokens, hidden_size);
  if (!packed) {
    check_compute_dtype(op, "word", args.word);
    const bool widens = embeds_stored_rows() && args.ids != nullptr &&
                        args.out.dtype == DType::kFloat32 && size_of(args.word.dtype) == 2;
    if (!widens) check_dtype_is(op, "out", args.out, args.word.dtype);
  } else if (!embeds_stored_rows() || !args.packed_word.groups || args.ids == nullptr) {
    fail(op, "packed_word goes with ids, weights in groups and a device that reads their rows");
  }
  check_batch(op, "batch", args.batch, tokens);
  for (auto [name, table] : {std::pair{"position", &args.position}, {"type", &args.type}}) {
    if (!*table) continue;
    check_matrix(op, name, *table, table->rows(), hidden_size);
    check_dtype_is(op, name, *table, args.out.dtype);
  }
  if (args.position && (args.position_offset < 0 || args.position_offset > args.position.rows())) {
    fail(op, concat("position_offset is ", args.position_offset, ", expected 0 to ",
                    args.position.rows(), ", the rows of position"));
  }
  if (args.skipped_id >= 0 && (args.ids == nullptr || args.position_offset < 1)) {
    fail(op, concat("skipped_id is ", args.skipped_id, " with position_offset ",
                    args.position_offset, ", expected ids and an offset of at least 1"));
  }
  if (args.rows) {
    check_matrix(op, "rows", args.rows, args.rows.rows(), hidden_size);
    check_dtype_is(op, "rows", args.rows, args.out.dtype);
    if (!takes_rows()) fail(op, "rows were given, which this device does not take");
  }
  if (static_cast<bool>(args.rows) != (args.row_numbers != nullptr)) {
    fail(op, "rows and row_numbers go together");
  }
  if (tokens == 0) return;
  if (args.ids == nullptr && args.word.rows() != tokens) {
    fail(op, concat("ids are missing for ", tokens, " tokens, and word has ", args.word.rows(),
                    " rows"));
  }
  do_embed(args);
}

void Ops::unfold(const UnfoldArgs& args) {
  const char* op = "unfold";
  check_compute_dtype(op, "x", args.x);
  if (args.stride < 1) fail(op, concat("stride is ", args.stride, ", expected 1 or more"));
  const int64_t tokens = args.batch.num_tokens;
  check_matrix(op, "x", args.x, args.stride * tokens, args.x.columns());
  check_batch(op, "batch", args.batch, tokens);
  if (args.width < 1 || args.width % 2 == 0) {
    fail(op, concat("width is ", args.width, ", expected an odd number"));
  }
  check_matrix(op, "out", args.out, tokens, args.width * args.x.columns());
  check_dtype_is(op, "out", args.out, args.x.dtype);
  if (tokens > 0) do_unfold(args);
}

void Ops::norm(const NormArgs& args) {
  const char* op = "norm";
  check_compute_dtype(op, "x", args.x);
  const bool quantizes = args.quantized.values.rank != 0;  // in an empty batch, too
  if (!args.norm && !quantizes) fail(op, "gamma is missing");
  if (quantizes && !quantizes_rows(args.x.columns())) {
    fail(op, concat("this device does not quantise rows of ", args.x.columns(), " columns"));
  }
  check_quantized(op, args.quantized, args.x.rows(), args.x.columns(),
                  !args.residual && !args.added);
  if (args.added) {
    check_matrix(op, "added", args.added, args.x.rows(), args.x.columns());
    check_dtype_is(op, "added", args.added, args.x.dtype);
  }
  if (args.out || !quantizes) {
    check_result(op, args.residual, args.out, args.x.rows(), args.x.columns(), args.x.dtype);
  }
  if (args.x.rows() > 0) do_norm(args);
}

void Ops::activate(const ActivateArgs& args) {
  const char* op = "activate";
  check_compute_dtype(op, "x", args.x);
  check_contiguous(op, "x", args.x);
  check_contiguous(op, "out", args.out);
  check_matrix(op, "x", args.x, args.out.rows(), args.out.columns() * (args.gated ? 2 : 1));
  check_dtype_is(op, "out", args.out, args.x.dtype);
  if ((args.slots == nullptr) != (args.ranks == nullptr)) fail(op, "slots or ranks are missing");
  if (args.x.rows() > 0) do_activate(args);
}

void Ops::pool(const PoolArgs& args) {
  const char* op = "pool";
  check_compute_dtype(op, "x", args.x);
  check_matrix(op, "x", args.x, args.batch.num_tokens, args.x.columns());
  check_batch(op, "batch", args.batch, args.x.rows());
  check_matrix(op, "out", args.out, args.batch.num_sequences, args.x.columns());
  if (args.out.dtype != DType::kFloat32) check_dtype_is(op, "out", args.out, args.x.dtype);
  if (args.skipped_id >= 0 && args.ids == nullptr && args.x.rows() > 0) fail(op, "ids are missing");
  if (args.batch.num_sequences > 0) do_pool(args);
}

void Ops::cast(const CastArgs& args) {
  const char* op = "cast";
  check_compute_dtype(op, "x", args.x);
  check_compute_dtype(op, "out", args.out);
  if (args.padding < 0) fail(op, concat("padding is ", args.padding, ", expected 0 or more"));
  check_matrix(op, "out", args.out, args.rows == nullptr ? args.x.rows() : args.out.rows(),
               args.x.columns() + args.padding);
  if (args.normalize && (args.scale != 1 || args.soft_cap != 0)) {
    fail(op, "rows that are normalised have neither scale nor soft_cap");
  }
  if (!(args.soft_cap >= 0))
    fail(op, concat("soft_cap is ", args.soft_cap, ", expected 0 or more"));
  if (args.out.rows() > 0) do_cast(args);
}

void Ops::log_softmax(const LogSoftmaxArgs& args) {
  const char* op = "log_softmax";
  check_compute_dtype(op, "x", args.x);
  check_matrix(op, "out", args.out, args.x.rows(), args.x.columns());
  check_dtype_is(op, "out", args.out, DType::kFloat32);
  if (args.x.size() > 0) do_log_softmax(args);
}

}  // namespace packhorse
