#include "model/heads/embedding.h"

#include "core/format.h"

namespace packhorse {
namespace {

// Writes the results of all poolings of the spec side by side.
void pool_all(const HeadRun& run, const EmbeddingSpec& spec, const TensorView& out) {
  const int64_t width = out.columns() / static_cast<int64_t>(spec.poolings.size());
  int64_t column = 0;
  for (const Pooling pooling : spec.poolings) {
    run.pool(pooling, out.column_slice(column, width));
    column += width;
  }
}

}  // namespace

EmbeddingWeights build_embedding(const Spec& spec, LayerPacker& packer) {
  const int64_t width = packer.width(spec.stack().hidden_size);
  const auto count = static_cast<int64_t>(spec.heads.embedding.poolings.size());
  return {build_dense_layers(
      spec.heads.embedding.dense, {spec.pooled_columns(), spec.stack().hidden_size, width},
      count * width, [](size_t i) { return concat("embedding.dense.", i); }, packer)};
}

EmbeddingBuffers take_embedding(const EmbeddingWeights& weights, const HeadArena& arena) {
  if (weights.dense.empty()) return {};
  const int64_t rows = arena.capacity.max_sequences;
  const TensorView pooled =
      arena.matrix("embedding_pooled", rows, weights.dense.front().layer.in_features);
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
