#include "model/heads/heads.h"

#include <algorithm>

namespace packhorse {

HeadWeights build_heads(const Spec& spec, const StemWeights& stem, LayerPacker& packer) {
  HeadWeights weights;
  if (spec.heads.pooler) weights.pooler = build_pooler(spec, packer);
  if (spec.heads.classifier) weights.classifier = build_classifier(spec, packer);
  if (spec.heads.token_weights) weights.token_weights = build_token_weights(spec, packer);
  if (spec.heads.vectors) weights.vectors = build_vectors(spec, packer);
  if (spec.heads.masked_lm) weights.masked_lm = build_masked_lm(spec, packer);
  if (spec.heads.lm) weights.lm = build_lm(spec, stem, packer);
  weights.embedding = build_embedding(spec, packer);
  return weights;
}

HeadBuffers take_head_buffers(const Spec& spec, const HeadWeights& weights,
                              const Capacity& capacity, const TensorView& hidden, const Ops& ops,
                              Arena& arena) {
  HeadBuffers buffers;
  buffers.outputs.hidden = hidden;
  const PerOutput<OutputLayout> layouts = output_layouts(spec, capacity);
  for (size_t i = 1; i < kOutputNames.size(); ++i) {
    const OutputLayout& layout = layouts[i];
    if (!layout.exists()) continue;
    // Results of a dense layer are as wide as hidden states are stored.
    const int64_t columns = layout.is_float32 ? layout.columns : hidden.columns();
    buffers.outputs[i] = arena.take_matrix(kOutputNames[i], layout.rows(capacity), columns,
                                           layout.dtype(hidden.dtype));
  }
  const HeadArena heads{arena, ops, capacity, hidden.dtype};
  const auto scoped = [&](const auto& take) {
    const Arena::Scope scope(arena);
    return take();
  };
  buffers.embedding = scoped([&] { return take_embedding(weights.embedding, heads); });
  if (weights.pooler) {
    buffers.pooler = scoped([&] { return take_pooler(*weights.pooler, heads); });
  }
  if (weights.classifier) {
    buffers.classifier =
        scoped([&] { return take_classifier(*spec.heads.classifier, *weights.classifier, heads); });
  }
  if (weights.token_weights) {
    buffers.token_weights =
        scoped([&] { return take_token_weights(*weights.token_weights, heads); });
  }
  buffers.vectors = scoped([&] { return take_vectors(weights.vectors, heads); });
  if (weights.masked_lm) {
    buffers.masked_lm =
        scoped([&] { return take_masked_lm(*spec.heads.masked_lm, *weights.masked_lm, heads); });
  }
  if (weights.lm) {
    buffers.lm = scoped([&] { return take_lm(*weights.lm, capacity.max_predictions, heads); });
  }
  if (hidden.dtype != DType::kFloat32 || hidden.columns() != spec.stack().hidden_size) {
    buffers.as_float32 =
        arena.take_matrix("hidden_float32", std::max(capacity.max_tokens, capacity.max_sequences),
                          spec.stack().hidden_size, DType::kFloat32);
  }
  return buffers;
}

void make_outputs(const HeadRun& run, const HeadsSpec& spec, const HeadWeights& weights,
                  const HeadBuffers& buffers, const PerOutput<OutputLayout>& layouts,
                  const DeviceOutputSet& wanted, const OutputBuffers& to) {
  OutputBuffers rows;
  for (size_t i = 0; i < kOutputNames.size(); ++i) {
    if (layouts[i].exists()) rows[i] = to[i].first_rows(layouts[i].rows(run.tokens));
  }
  if (wanted.embedding) {
    make_embedding(run, spec, weights.embedding, buffers.embedding, rows.embedding);
  }
  const bool classifies_pooled =
      spec.classifier && spec.classifier->input == ClassifierSpec::Input::kPooler;
  TensorView pooled = rows.pooled;
  if (wanted.pooled || (wanted.logits && classifies_pooled)) {
    // An output without the padding is a copy.
    const bool padded = pooled.columns() != run.hidden.columns();
    if (padded) pooled = buffers.outputs.pooled.first_rows(pooled.rows());
    make_pooled(run, *spec.pooler, *weights.pooler, buffers.pooler, pooled);
    if (padded) {
      run.ops.cast({.x = pooled.column_slice(0, rows.pooled.columns()), .out = rows.pooled});
    }
  }
  if (wanted.logits) {
    make_logits(run, *spec.classifier, *weights.classifier, buffers.classifier, pooled,
                rows.logits);
  }
  if (wanted.token_weights) {
    make_token_weights(run, *weights.token_weights, buffers.token_weights, rows.token_weights);
  }
  if (wanted.vectors) {
    make_vectors(run, *spec.vectors, weights.vectors, buffers.vectors, rows.vectors);
  }
  if (wanted.sparse) {
    make_sparse(run, *spec.masked_lm, *weights.masked_lm, buffers.masked_lm, rows.sparse);
  }
  if (wanted.predictions && weights.lm) {
    make_lm_predictions(run, *spec.lm, *weights.lm, buffers.lm, rows.predictions);
  } else if (wanted.predictions) {
    make_predictions(run, *spec.masked_lm, *weights.masked_lm, buffers.masked_lm, rows.predictions);
  }
}

}  // namespace packhorse
