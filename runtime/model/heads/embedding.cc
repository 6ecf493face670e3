#include "model/heads/embedding.h"

#include "core/format.h"

namespace packhorse {
namespace {

// Writes the results of all poolings of the spec side by side.
void pool_all(const HeadRun& run, const EmbeddingSpec& spec, const TensorView& out) {
  const int64_t width = run.hidden.columns();
  int64_t column = 0;
  for (const Pooling pooling : spec.poolings) {
    run.pool(pooling, out.column_slice(column, width));
    column += width;
  }
}

}  // namespace

EmbeddingWeights build_embedding(const Spec& spec, LayerPacker& packer) {
  return {build_dense_layers(
      spec.heads.embedding.dense, spec.pooled_columns(),
      [](size_t i) { return concat("embedding.dense.", i); }, packer)};
}

EmbeddingBuffers take_embedding(const Spec& spec, const EmbeddingWeights& weights,
                                const HeadArena& arena) {
  if (weights.dense.empty()) return {};
  const int64_t rows = arena.capacity.max_sequences;
  const TensorView pooled = arena.matrix("embedding_pooled", rows, spec.pooled_columns());
  return {pooled, take_dense_layers(weights.dense, rows, "embedding", arena)};
}

void make_embedding(const HeadRun& run, const EmbeddingSpec& spec, const EmbeddingWeights& weights,
                    const EmbeddingBuffers& buffers, const TensorView& out) {
  if (spec.dense.empty() && spec.poolings.size() == 1) {
    return run.pool(spec.poolings[0], out, spec.normalize);
  }
  TensorView x = out;
  if (!spec.dense.empty()) x = buffers.pooled.first_rows(out.rows());
  pool_all(run, spec, x);
  x = run_dense_layers(run, x, spec.dense, weights.dense, buffers.dense);
  run.finish(x, out, OutputRows::kSequences, spec.normalize);
}

}  // namespace packhorse
