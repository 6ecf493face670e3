#include "model/heads/masked_lm.h"

#include <algorithm>

namespace packhorse {
namespace {

TensorView run_dense(const HeadRun& run, const MaskedLmSpec& spec, const MaskedLmWeights& weights,
                     const MaskedLmScratch& buffers, const TensorView& x) {
  const TensorView out = buffers.dense.first_rows(x.rows());
  run.dense(x, weights.dense, out, buffers.workspace, spec.activation, weights.norm);
  return out;
}

SparsePoolArgs sparse_pool_of(const MaskedLmSpec& spec, const MaskedLmWeights& weights,
                              const MaskedLmScratch& buffers, const TensorView& x) {
  SparsePoolArgs args;
  args.x = x;
  args.weight = weights.decoder;
  args.sum = spec.sparse_sum;
  args.twice = spec.sparse_twice;
  args.workspace = buffers.sparse_workspace;
  return args;
}

}  // namespace

MaskedLmWeights build_masked_lm(const Spec& spec, LayerPacker& packer) {
  const MaskedLmSpec& head = *spec.heads.masked_lm;
  const int64_t width = spec.stack().stem.embedding_size;
  MaskedLmWeights weights;
  weights.dense = packer.dense("masked_lm.dense", width, spec.stack().hidden_size, head.dense_bias);
  weights.norm = packer.norm("masked_lm.norm", width);
  weights.decoder = packer.padded_dense("masked_lm.decoder", spec.stack().stem.vocab_size, width,
                                        head.decoder_bias);
  return weights;
}

MaskedLmScratch take_masked_lm(const MaskedLmSpec& spec, const MaskedLmWeights& weights,
                               const HeadArena& arena) {
  const int64_t predictions = arena.capacity.max_predictions;
  const int64_t rows = spec.sparse ? arena.capacity.max_tokens : predictions;
  MaskedLmScratch buffers;
  size_t bytes = arena.workspace_of(rows, weights.dense);
  buffers.dense = arena.matrix("masked_lm_dense", rows, weights.dense.out_features);
  if (predictions > 0) {
    buffers.input = arena.matrix("prediction_input", predictions, weights.dense.in_features);
    buffers.padded = arena.matrix("padded_predictions", predictions, weights.decoder.out_features);
    bytes = std::max(bytes, arena.workspace_of(predictions, weights.decoder));
  }
  if (spec.sparse) {
    buffers.sparse_workspace = arena.workspace(
        "sparse_workspace",
        arena.ops.sparse_pool_workspace(sparse_pool_of(spec, weights, buffers, buffers.dense)));
  }
  buffers.workspace = arena.workspace("masked_lm_workspace", bytes);
  return buffers;
}

void make_sparse(const HeadRun& run, const MaskedLmSpec& spec, const MaskedLmWeights& weights,
                 const MaskedLmScratch& buffers, const TensorView& out) {
  const TensorView x = run_dense(run, spec, weights, buffers, run.hidden);
  SparsePoolArgs args = sparse_pool_of(spec, weights, buffers, x);
  args.batch = run.tokens.batch;
  args.out = out;
  run.ops.sparse_pool(args);
}

void make_predictions(const HeadRun& run, const MaskedLmSpec& spec, const MaskedLmWeights& weights,
                      const MaskedLmScratch& buffers, const TensorView& out) {
  const TensorView input = buffers.input.first_rows(out.rows());
  run.ops.cast({.x = run.hidden, .out = input, .rows = run.tokens.prediction_rows});
  const TensorView padded = buffers.padded.first_rows(out.rows());
  run.dense(run_dense(run, spec, weights, buffers, input), weights.decoder, padded,
            buffers.workspace);
  run.finish(padded, out, OutputRows::kPredictions);
}

}  // namespace packhorse
