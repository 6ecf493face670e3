#include "model/heads.h"

#include <cstring>

namespace packhorse {

void Heads::dense(const TensorView& x, const LinearWeight& weight, const TensorView& out,
                  Activation activation, const NormWeight& norm, const TensorView& residual) const {
  ops_.linear({.x = x,
               .weight = weight,
               .activation = activation,
               .residual = residual,
               .norm = norm,
               .out = out,
               .workspace = buffers_.head_workspace});
}

void Heads::project(const TensorView& x, const LinearWeight& weight, const TensorView& padded,
                    const TensorView& out, Activation activation, bool normalize,
                    bool per_token) const {
  dense(x, weight, padded, activation);
  finish(padded, out, normalize, per_token);
}

TensorView Heads::dense_layers(TensorView x, const std::vector<DenseSpec>& layers,
                               const std::vector<DenseWeights>& weights,
                               const std::vector<TensorView>& buffers) const {
  for (size_t i = 0; i < layers.size(); ++i) {
    const TensorView to = buffers[i].first_rows(x.rows());
    if (weights[i].residual) dense(x, *weights[i].residual, to);
    const TensorView residual = weights[i].residual ? to : x;
    dense(x, weights[i].layer, to, layers[i].activation, {},
          layers[i].residual ? residual : TensorView{});
    x = to;
  }
  return x;
}

// Into float32 of as many columns as `out` has.
void Heads::finish(const TensorView& padded, const TensorView& out, bool normalize,
                   bool per_token) const {
  if (per_token && counts_ != nullptr) ops_.device_io()->copy_rows(padded, padded, counts_);
  ops_.cast({.x = padded.column_slice(0, out.columns()), .out = out, .normalize = normalize});
}

// [B, E] in the model's dtype.
TensorView Heads::pool(Pooling pooling) const {
  const TensorView out = buffers_.head_input.first_rows(batch_.num_sequences);
  pool(pooling, out);
  return out;
}

void Heads::pool(Pooling pooling, const TensorView& out, bool normalize) const {
  ops_.pool(
      {.x = hidden(), .batch = batch_, .pooling = pooling, .normalize = normalize, .out = out});
}

// The poolings of the spec, side by side.
void Heads::pool_all(const TensorView& out) const {
  const int64_t width = spec_.hidden_size;
  int64_t column = 0;
  for (const Pooling pooling : spec_.heads.embedding.poolings) {
    pool(pooling, out.column_slice(column, width));
    column += width;
  }
}

void Heads::clear_empty(const TensorView& rows) const {
  if (DeviceIo* io = ops_.device_io()) {
    io->clear_empty(batch_.cu_seqlens, rows);
    return;
  }
  const size_t row_bytes = static_cast<size_t>(rows.columns()) * size_of(rows.dtype);
  for (int64_t b = 0; b < batch_.num_sequences; ++b) {
    if (batch_.cu_seqlens[b] != batch_.cu_seqlens[b + 1]) continue;
    std::memset(rows.as<char>() + static_cast<size_t>(b) * row_bytes, 0, row_bytes);
  }
}

void Heads::embedding(const TensorView& out) const {
  const TensorView rows = out.first_rows(batch_.num_sequences);
  if (spec_.heads.embedding.dense.empty()) {
    if (spec_.heads.embedding.poolings.size() == 1)
      return pool(spec_.heads.embedding.poolings[0], rows, spec_.heads.embedding.normalize);
    pool_all(rows);
    if (spec_.heads.embedding.normalize) ops_.cast({.x = rows, .out = rows, .normalize = true});
    return clear_empty(rows);  // a batch refused on the device pools nothing
  }
  TensorView x = buffers_.embedding_input.first_rows(batch_.num_sequences);
  pool_all(x);
  x = dense_layers(x, spec_.heads.embedding.dense, weights_.embedding_dense,
                   buffers_.embedding_dense);
  ops_.cast({.x = x.column_slice(0, rows.columns()),
             .out = rows,
             .normalize = spec_.heads.embedding.normalize});
  clear_empty(rows);
}

void Heads::pooled(const TensorView& out) const {
  const TensorView rows = out.first_rows(batch_.num_sequences);
  dense(pool(Pooling::kCls), *weights_.pooler, rows, *spec_.heads.pooler);
  clear_empty(rows);
}

void Heads::logits(const TensorView& pooled, const TensorView& out) const {
  using Input = ClassifierSpec::Input;
  const ClassifierSpec& classifier = *spec_.heads.classifier;
  const bool per_token = classifier.per_token();
  const int64_t rows = per_token ? batch_.num_tokens : batch_.num_sequences;
  const auto input = [&] {
    switch (classifier.input) {
      case Input::kTokens:
        return hidden();
      case Input::kPooler:
        return pooled.first_rows(rows);
      case Input::kMean:
        return pool(Pooling::kMean);
      case Input::kLast:
        return pool(Pooling::kLast);
      case Input::kCls:
        break;
    }
    return pool(Pooling::kCls);
  };
  TensorView x = input();
  if (classifier.dense) {
    const TensorView to = buffers_.classifier_dense.first_rows(rows);
    dense(x, *weights_.classifier_dense, to, *classifier.dense, weights_.classifier_norm);
    x = to;
  }
  const TensorView found = out.first_rows(rows);
  project(x, *weights_.classifier, buffers_.padded_logits.first_rows(rows), found,
          Activation::kNone, false, per_token);
  if (!per_token) clear_empty(found);
}

void Heads::token_weights(const TensorView& out) const {
  project(hidden(), *weights_.token_weights,
          buffers_.padded_token_weights.first_rows(batch_.num_tokens),
          out.first_rows(batch_.num_tokens), Activation::kRelu, false, true);
}

void Heads::vectors(const TensorView& out) const {
  const TensorView x =
      dense_layers(hidden(), spec_.heads.vectors->layers, weights_.vectors, buffers_.vectors_dense);
  finish(x, out.first_rows(batch_.num_tokens), spec_.heads.vectors->normalize, true);
}

TensorView Heads::masked_lm_dense(const TensorView& x) const {
  const TensorView out = buffers_.masked_lm_dense.first_rows(x.rows());
  dense(x, *weights_.masked_lm_dense, out, spec_.heads.masked_lm->activation,
        weights_.masked_lm_norm);
  return out;
}

void Heads::sparse(const TensorView& out) const {
  ops_.sparse_pool({.x = masked_lm_dense(hidden()),
                    .weight = *weights_.masked_lm_decoder,
                    .batch = batch_,
                    .sum = spec_.heads.masked_lm->sparse_sum,
                    .twice = spec_.heads.masked_lm->sparse_twice,
                    .out = out.first_rows(batch_.num_sequences),
                    .workspace = buffers_.sparse_workspace});
}

void Heads::predictions(const TensorView& out) const {
  const int64_t rows = inputs_.num_predictions;
  // A table of hidden states: rows are ascending, and so no more than the batch has tokens.
  EmbedArgs gather;
  gather.ids = inputs_.prediction_rows;
  gather.word = hidden();
  gather.batch = batch_;
  gather.batch.num_tokens = rows;
  gather.out = buffers_.prediction_input.first_rows(rows);
  ops_.embed(gather);
  project(masked_lm_dense(gather.out), *weights_.masked_lm_decoder,
          buffers_.padded_predictions.first_rows(rows), out.first_rows(rows), Activation::kNone,
          false, true);
}

}  // namespace packhorse
