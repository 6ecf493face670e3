#include "model/heads/embedding.h"

#include "core/format.h"

namespace packhorse {
EmbeddingWeights build_embedding(const Spec& spec, LayerPacker& packer) {
  const int64_t width = packer.width(spec.stack().hidden_size);
  const auto count = static_cast<int64_t>(spec.heads.embedding.poolings.size());
  EmbeddingWeights weights;
  weights.width = count * width;
  if (spec.heads.embedding.probe) weights.probe = build_probe(spec, packer);
  if (spec.heads.embedding.norm) {
    weights.norm = packer.norm("embedding.norm", spec.stack().hidden_size);
  }
  weights.dense = build_dense_layers(
      spec.heads.embedding.dense, {spec.pooled_columns(), spec.stack().hidden_size, width},
      count * width, [](size_t i) { return concat("embedding.dense.", i); }, packer);
  return weights;
}

EmbeddingBuffers take_embedding(const EmbeddingWeights& weights, const HeadArena& arena) {
  EmbeddingBuffers buffers;
  if (weights.probe) buffers.probe = take_probe(*weights.probe, arena);
  if (weights.dense.empty() && !weights.norm) return buffers;
  const int64_t rows = arena.capacity.max_sequences;
  if (!weights.probe) {
    buffers.pooled = arena.matrix("embedding_pooled", rows, weights.width);
  }
  buffers.dense = take_dense_layers(weights.dense, rows, "embedding", arena);
  return buffers;
}

void make_embedding(const HeadRun& run, const HeadsSpec& heads, const EmbeddingWeights& weights,
                    const EmbeddingBuffers& buffers, const TensorView& out) {
  const EmbeddingSpec& spec = heads.embedding;
  if (spec.dense.empty() && spec.poolings.size() == 1 && !spec.probe && !spec.norm) {
    return run.pool(spec.poolings[0], out, spec.normalize);
  }
  TensorView x = out;
  if (spec.probe) {
    x = run_probe(run, *heads.probe, *weights.probe, buffers.probe);
  } else {
    if (buffers.pooled) x = buffers.pooled.first_rows(out.rows());
    run.pool_all(spec.poolings, x);
    if (weights.norm) run.ops.norm({.x = x, .norm = *weights.norm, .out = x});
  }
  x = run_dense_layers(run, x, spec.dense, weights.dense, buffers.dense);
  run.finish(x, out, OutputRows::kSequences, spec.normalize);
}

}  // namespace packhorse
