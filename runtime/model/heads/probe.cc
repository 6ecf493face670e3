#include "model/heads/probe.h"

#include <algorithm>
#include <cmath>

namespace packhorse {

ProbeWeights build_probe(const Spec& spec, LayerPacker& packer) {
  const int64_t hidden_size = spec.stack().hidden_size;
  const int64_t size = spec.heads.probe->size;
  ProbeWeights weights;
  weights.query = packer.vector("probe.query", hidden_size);
  weights.head_dim = hidden_size / spec.heads.probe->num_heads;
  weights.key = packer.dense("probe.key", hidden_size, hidden_size);
  weights.value = packer.dense("probe.value", hidden_size, hidden_size);
  weights.output = packer.dense("probe.output", hidden_size, hidden_size);
  weights.norm = packer.norm("probe.norm", hidden_size);
  weights.up = packer.dense("probe.up", size, hidden_size);
  weights.down = packer.dense("probe.down", hidden_size, size);
  return weights;
}

ProbeBuffers take_probe(const ProbeWeights& weights, const HeadArena& arena) {
  const int64_t tokens = arena.capacity.max_tokens;
  const int64_t rows = arena.capacity.max_sequences;
  ProbeBuffers buffers;
  buffers.keys = arena.matrix("probe_keys", tokens, weights.key.out_features);
  buffers.values = arena.matrix("probe_values", tokens, weights.value.out_features);
  buffers.attended = arena.matrix("probe_attended", rows, weights.key.out_features);
  buffers.summed = arena.matrix("probe_summed", rows, weights.output.out_features);
  buffers.inner = arena.matrix("probe_inner", rows, weights.up.out_features);
  size_t bytes = arena.workspace_of(tokens, weights.key);
  bytes = std::max(bytes, arena.workspace_of(tokens, weights.value));
  for (const LinearWeight* layer : {&weights.output, &weights.up, &weights.down}) {
    bytes = std::max(bytes, arena.workspace_of(rows, *layer));
  }
  buffers.workspace = arena.workspace("probe_workspace", bytes);
  return buffers;
}

TensorView run_probe(const HeadRun& run, const ProbeSpec& spec, const ProbeWeights& weights,
                     const ProbeBuffers& buffers) {
  const int64_t tokens = run.tokens.batch.num_tokens;
  const int64_t rows = run.tokens.batch.num_sequences;
  const TensorView keys = buffers.keys.first_rows(tokens);
  const TensorView values = buffers.values.first_rows(tokens);
  const TensorView attended = buffers.attended.first_rows(rows);
  const TensorView summed = buffers.summed.first_rows(rows);
  const TensorView inner = buffers.inner.first_rows(rows);
  run.dense(run.hidden, weights.key, keys, buffers.workspace);
  run.dense(run.hidden, weights.value, values, buffers.workspace);
  run.ops.probe_attention({.query = weights.query,
                           .keys = keys,
                           .values = values,
                           .batch = run.tokens.batch,
                           .num_heads = spec.num_heads,
                           .head_dim = weights.head_dim,
                           .scale = 1.0f / std::sqrt(static_cast<float>(weights.head_dim)),
                           .out = attended});
  run.dense(attended, weights.output, summed, buffers.workspace);
  run.ops.norm({.x = summed, .norm = weights.norm, .out = attended});
  run.dense(attended, weights.up, inner, buffers.workspace, spec.activation);
  run.dense(inner, weights.down, summed, buffers.workspace, Activation::kNone, {}, summed);
  return summed;
}

}  // namespace packhorse
