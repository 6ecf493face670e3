#include "model/heads.h"

#include <algorithm>

namespace packhorse {
namespace {

// [B, E] in the model's dtype.
TensorView pool_for_head(Pooling pooling, const BatchView& batch, const EncoderBuffers& buffers,
                         Ops& ops) {
  const TensorView out = buffers.head_input.first_rows(batch.num_sequences);
  ops.pool({.x = buffers.hidden.first_rows(batch.num_tokens),
            .batch = batch,
            .pooling = pooling,
            .normalize = false,
            .out = out});
  return out;
}

}  // namespace

void take_head_buffers(const Spec& spec, const Capacity& capacity, DType dtype, const Ops& ops,
                       Arena& arena, EncoderBuffers& buffers) {
  if (!spec.pooler && !spec.classifier) return;
  const int64_t sequences = capacity.max_sequences;
  const int64_t hidden_size = spec.hidden_size;
  size_t workspace = 0;
  if (spec.pooler || !spec.classifier->per_token()) {
    buffers.head_input = take_matrix(arena, "head_input", sequences, hidden_size, dtype);
  }
  if (spec.pooler) {
    buffers.pooled = take_matrix(arena, "pooled", sequences, hidden_size, dtype);
    workspace = ops.linear_workspace(sequences, hidden_size, hidden_size, dtype);
  }
  if (spec.classifier) {
    const int64_t rows = spec.classifier->per_token() ? capacity.max_tokens : sequences;
    const int64_t labels = spec.classifier->num_labels;
    const int64_t padded = padded_num_labels(spec, ops);
    if (spec.classifier->dense) {
      buffers.classifier_dense = take_matrix(arena, "classifier_dense", rows, hidden_size, dtype);
    }
    buffers.padded_logits = take_matrix(arena, "padded_logits", rows, padded, dtype);
    buffers.logits = take_matrix(arena, "logits", rows, labels, DType::kFloat32);
    workspace = std::max({workspace, ops.linear_workspace(rows, hidden_size, hidden_size, dtype),
                          ops.linear_workspace(rows, hidden_size, padded, dtype)});
  }
  buffers.head_workspace = arena.take("head_workspace", workspace);
}

TensorView embed_sequences(const Spec& spec, const BatchView& batch, const EncoderBuffers& buffers,
                           Ops& ops) {
  const TensorView out = buffers.embedding.first_rows(batch.num_sequences);
  ops.pool({.x = buffers.hidden.first_rows(batch.num_tokens),
            .batch = batch,
            .pooling = spec.pooling,
            .normalize = spec.normalize,
            .out = out});
  return out;
}

TensorView pool_first_tokens(const Spec& spec, const ModelWeights& weights, const BatchView& batch,
                             const EncoderBuffers& buffers, Ops& ops) {
  const TensorView out = buffers.pooled.first_rows(batch.num_sequences);
  ops.linear({.x = pool_for_head(Pooling::kCls, batch, buffers, ops),
              .weight = *weights.pooler,
              .activation = *spec.pooler,
              .residual = {},
              .norm = {},
              .out = out,
              .workspace = buffers.head_workspace});
  return out;
}

TensorView classify(const Spec& spec, const ModelWeights& weights, const BatchView& batch,
                    const int32_t* counts, const EncoderBuffers& buffers, Ops& ops) {
  using Input = ClassifierSpec::Input;
  const ClassifierSpec& classifier = *spec.classifier;
  const int64_t rows = classifier.per_token() ? batch.num_tokens : batch.num_sequences;
  TensorView x =
      classifier.per_token() ? buffers.hidden.first_rows(rows)
      : classifier.input == Input::kPooler
          ? buffers.pooled.first_rows(rows)
          : pool_for_head(classifier.input == Input::kMean ? Pooling::kMean : Pooling::kCls, batch,
                          buffers, ops);
  if (classifier.dense) {
    const TensorView dense = buffers.classifier_dense.first_rows(rows);
    ops.linear({.x = x,
                .weight = *weights.classifier_dense,
                .activation = *classifier.dense,
                .residual = {},
                .norm = weights.classifier_norm,
                .out = dense,
                .workspace = buffers.head_workspace});
    x = dense;
  }
  const TensorView padded = buffers.padded_logits.first_rows(rows);
  ops.linear({.x = x,
              .weight = *weights.classifier,
              .residual = {},
              .norm = {},
              .out = padded,
              .workspace = buffers.head_workspace});
  if (classifier.per_token() && counts != nullptr) {
    ops.device_io()->copy_rows(padded, padded, counts);
  }
  const TensorView logits = buffers.logits.first_rows(rows);
  ops.cast({.x = padded.column_slice(0, classifier.num_labels), .out = logits});
  return logits;
}

}  // namespace packhorse
