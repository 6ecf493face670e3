#include "model/heads/classifier.h"

#include <algorithm>

namespace packhorse {
namespace {

using Input = ClassifierSpec::Input;

OutputRows rows_of(const ClassifierSpec& spec) {
  return spec.per_token() ? OutputRows::kTokens : OutputRows::kSequences;
}

// The pooling of tokens that the classifier takes, or nothing if it pools none.
std::optional<Pooling> pooling_of(Input input) {
  switch (input) {
    case Input::kCls:
      return Pooling::kCls;
    case Input::kMean:
      return Pooling::kMean;
    case Input::kLast:
      return Pooling::kLast;
    case Input::kPooler:
    case Input::kTokens:
    case Input::kPoolings:
      break;
  }
  return std::nullopt;
}

}  // namespace

ClassifierWeights build_classifier(const Spec& spec, LayerPacker& packer) {
  const ClassifierSpec& classifier = *spec.heads.classifier;
  ClassifierWeights weights;
  if (classifier.dense) {
    weights.dense = packer.dense("classifier.dense", spec.stack().hidden_size,
                                 spec.stack().hidden_size, classifier.dense_bias);
  }
  if (classifier.dense_norm || classifier.pooled_norm)
    weights.norm = packer.norm("classifier.norm", spec.stack().hidden_size);
  if (classifier.input == Input::kPoolings) {
    const int64_t size = spec.stack().hidden_size;
    const auto count = static_cast<int64_t>(classifier.poolings.size());
    weights.output = packer.linear({"classifier",
                                    {{"classifier", whole(classifier.num_labels), classifier.bias}},
                                    packer.padded(classifier.num_labels),
                                    {count * size, size, packer.width(size)},
                                    count * packer.width(size)},
                                   packer.precision().rest);
    return weights;
  }
  weights.output = packer.padded_dense("classifier", classifier.num_labels,
                                       spec.stack().hidden_size, classifier.bias);
  return weights;
}

HeadScratch take_classifier(const ClassifierSpec& spec, const ClassifierWeights& weights,
                            const HeadArena& arena) {
  const int64_t hidden_size = weights.output.in_features;
  const int64_t rows = OutputLayout{.per = rows_of(spec)}.rows(arena.capacity);
  HeadScratch buffers;
  size_t bytes = arena.workspace_of(rows, weights.output);
  if (pooling_of(spec.input) || spec.input == Input::kPoolings) {
    buffers.input = arena.matrix("classifier_input", rows, hidden_size);
  }
  if (weights.dense) {
    buffers.dense = arena.matrix("classifier_dense", rows, hidden_size);
    bytes = std::max(bytes, arena.workspace_of(rows, *weights.dense));
  }
  buffers.padded = arena.matrix("padded_logits", rows, weights.output.out_features);
  buffers.workspace = arena.workspace("classifier_workspace", bytes);
  return buffers;
}

void make_logits(const HeadRun& run, const ClassifierSpec& spec, const ClassifierWeights& weights,
                 const HeadScratch& buffers, const TensorView& pooled, const TensorView& out) {
  const int64_t rows = out.rows();
  TensorView x = spec.per_token() ? run.hidden : pooled;
  if (const auto pooling = pooling_of(spec.input)) {
    x = buffers.input.first_rows(rows);
    run.pool(*pooling, x, false, spec.padding_id);
  }
  if (spec.input == Input::kPoolings) {
    x = buffers.input.first_rows(rows);
    run.pool_all(spec.poolings, x);
    if (spec.pooled_norm) run.ops.norm({.x = x, .norm = weights.norm, .out = x});
  }
  if (spec.dense) {
    const TensorView to = buffers.dense.first_rows(rows);
    run.dense(x, *weights.dense, to, buffers.workspace, *spec.dense, weights.norm);
    x = to;
  }
  const TensorView padded = buffers.padded.first_rows(rows);
  run.dense(x, weights.output, padded, buffers.workspace);
  run.finish(padded, out, rows_of(spec));
}

}  // namespace packhorse
