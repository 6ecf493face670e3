#include "model/heads/lm.h"

#include <algorithm>

namespace packhorse {

LmWeights build_lm(const Spec& spec, const StemWeights& stem, LayerPacker& packer) {
  const LmSpec& head = *spec.heads.lm;
  const int64_t width = spec.stack().stem.embedding_size;
  LmWeights weights;
  if (head.projection)
    weights.projection = packer.dense("lm.projection", width, spec.stack().hidden_size, false);
  // A decoder that is named among the quantised weights has a tensor of its own.
  const bool from_table = head.tied && !spec.quantized.contains("lm.decoder");
  if (from_table && stem.packed_words && !head.bias) {
    weights.decoder = *stem.packed_words;
    return weights;
  }
  weights.decoder =
      packer.padded_dense("lm.decoder", spec.stack().stem.vocab_size, width, head.bias,
                          packer.precision().decoder, from_table ? spec.word_table() : "");
  return weights;
}

LmScratch take_lm(const LmWeights& weights, int64_t rows, const HeadArena& arena) {
  LmScratch buffers;
  if (rows == 0) return buffers;
  size_t bytes = arena.workspace_of(rows, weights.decoder);
  const LinearWeight& first = weights.projection ? *weights.projection : weights.decoder;
  buffers.input = arena.matrix("lm_input", rows, first.in_features);
  if (weights.projection) {
    buffers.dense = arena.matrix("lm_projection", rows, weights.projection->out_features);
    bytes = std::max(bytes, arena.workspace_of(rows, *weights.projection));
  }
  buffers.padded = arena.matrix("padded_logits", rows, weights.decoder.out_features);
  buffers.workspace = arena.workspace("lm_workspace", bytes);
  return buffers;
}

void make_lm_logits(const LmSpec& spec, const LmWeights& weights, const LmScratch& buffers,
                    const TensorView& x, const TensorView& out, const int32_t* row_count,
                    Ops& ops) {
  TensorView input = x;
  if (weights.projection) {
    const TensorView projected = buffers.dense.first_rows(x.rows());
    ops.linear({.x = x,
                .weight = *weights.projection,
                .residual = {},
                .norm = {},
                .out = projected,
                .workspace = buffers.workspace});
    input = projected;
  }
  const TensorView padded = buffers.padded.first_rows(x.rows());
  ops.linear({.x = input,
              .weight = weights.decoder,
              .residual = {},
              .norm = {},
              .out = padded,
              .workspace = buffers.workspace});
  const bool in_place = out.data == padded.data;
  if (in_place && spec.scale == 1 && spec.soft_cap == 0) return;
  ops.cast({.x = padded.column_slice(0, out.columns()),
            .out = out,
            .scale = spec.scale,
            .soft_cap = spec.soft_cap,
            .row_count = row_count});
}

void make_lm_predictions(const HeadRun& run, const LmSpec& spec, const LmWeights& weights,
                         const LmScratch& buffers, const TensorView& out) {
  const TensorView input = buffers.input.first_rows(out.rows());
  run.ops.cast({.x = run.hidden, .out = input, .rows = run.tokens.prediction_rows});
  make_lm_logits(spec, weights, buffers, input, out, run.counts, run.ops);
}

}  // namespace packhorse
