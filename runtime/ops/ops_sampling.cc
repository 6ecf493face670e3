// Checks of the operators of generation.
#include "core/format.h"
#include "ops/checks.h"
#include "ops/ops.h"

namespace packhorse {

void Ops::sample(const SampleArgs& args) {
  const char* op = "sample";
  const int64_t vocab_size = args.logits.columns();
  check_dtype_is(op, "logits", args.logits, DType::kFloat32);
  if (args.logits.rows() == 0) return;
  if (vocab_size < 1 || vocab_size > kMostVocabSize) {
    fail(op, concat("logits has ", vocab_size, " columns, expected 1 to ", kMostVocabSize));
  }
  if (args.source) {
    check_matrix(op, "source", args.source, args.logits.rows(), vocab_size);
    if (!samples(args.source.dtype)) {
      fail(op, concat("source is ", args.source.describe(), ", which this backend does not take"));
    }
  }
  if (args.num_top < 0 || args.num_top > kMostTopTokens) {
    fail(op, concat("num_top is ", args.num_top, ", expected 0 to ", kMostTopTokens));
  }
  if (args.counts) {
    check_dtype_is(op, "counts", args.counts, DType::kInt32);
    check_matrix(op, "counts", args.counts, args.counts.rows(), vocab_size);
  }
  if (args.rows == nullptr || args.tokens == nullptr || args.workspace == nullptr ||
      (args.wants_logprobs && args.logprobs == nullptr) ||
      (args.num_top > 0 && (args.top_tokens == nullptr || args.top_logprobs == nullptr))) {
    fail(op, "rows, workspace or a result is missing");
  }
  do_sample(args);
}

void Ops::count_tokens(const CountTokensArgs& args) {
  const char* op = "count_tokens";
  check_dtype_is(op, "counts", args.counts, DType::kInt32);
  if (args.num_tokens > 0 && (args.ids == nullptr || args.slots == nullptr)) {
    fail(op, "ids or slots are missing");
  }
  if (args.num_tokens > 0 || args.num_clear > 0) do_count_tokens(args);
}

void Ops::begin_step(const BeginStepArgs& args) {
  const char* op = "begin_step";
  check_batch(op, "batch", args.batch, args.batch.num_tokens);
  if (args.batch.num_sequences == 0) return;
  check_dtype_is(op, "counts", args.counts, DType::kInt32);
  if (args.ids == nullptr || args.sources == nullptr || args.tokens == nullptr ||
      args.count_slots == nullptr || args.page_begins == nullptr || args.pages == nullptr ||
      args.table == nullptr) {
    fail(op, "an input or the table is missing");
  }
  do_begin_step(args);
}

}  // namespace packhorse
