#include "model/encoder_outputs.h"

#include <cstring>

#include "model/heads.h"

namespace packhorse {

void EncoderOutputs::read(const BatchView& batch, const RunOutputs& outputs) {
  read_back(buffers_.hidden.first_rows(batch.num_tokens), outputs.hidden);
  if (outputs.embedding != nullptr) {
    read_back(embed_sequences(spec_, batch, buffers_, ops_), outputs.embedding);
  }
  if (outputs.pooled != nullptr || (outputs.logits != nullptr && classifies_pooled())) {
    read_back(pool_heads(batch, buffers_), outputs.pooled);
  }
  if (outputs.logits != nullptr) read_back(logits(batch, nullptr, buffers_), outputs.logits);
}

void EncoderOutputs::read_back(TensorView rows, float* to) {
  if (to == nullptr || rows.size() == 0) return;
  if (rows.dtype != DType::kFloat32) {
    const TensorView converted = buffers_.as_float32.first_rows(rows.rows());
    ops_.cast({.x = rows, .out = converted});
    rows = converted;
  }
  ops_.download(to, rows.data, static_cast<size_t>(rows.size()) * sizeof(float));
}

void EncoderOutputs::write(const BatchView& batch, const int32_t* counts,
                           const DeviceOutputSet& wanted, const OutputSlot& to) {
  if (wanted.hidden) {
    ops_.device_io()->copy_rows(buffers_.hidden.first_rows(batch.num_tokens),
                                to.hidden.first_rows(batch.num_tokens), counts);
  }
  EncoderBuffers buffers = buffers_;
  buffers.embedding = to.embedding;
  buffers.pooled = to.pooled;
  if (wanted.embedding) embed_sequences(spec_, batch, buffers, ops_);
  buffers.logits = to.logits;
  if (wanted.pooled || (wanted.logits && classifies_pooled())) pool_heads(batch, buffers);
  if (wanted.logits) logits(batch, counts, buffers);
}

bool EncoderOutputs::classifies_pooled() const {
  return spec_.classifier && spec_.classifier->input == ClassifierSpec::Input::kPooler;
}

// The pooler of nothing is nothing, as the embedding of an empty sequence is zeros.
TensorView EncoderOutputs::pool_heads(const BatchView& batch, const EncoderBuffers& buffers) {
  const TensorView pooled = pool_first_tokens(spec_, weights_, batch, buffers, ops_);
  clear_empty(batch, pooled);
  return pooled;
}

TensorView EncoderOutputs::logits(const BatchView& batch, const int32_t* counts,
                                  const EncoderBuffers& buffers) {
  const TensorView found = classify(spec_, weights_, batch, counts, buffers, ops_);
  if (!spec_.classifier->per_token()) clear_empty(batch, found);
  return found;
}

void EncoderOutputs::clear_empty(const BatchView& batch, const TensorView& rows) {
  if (DeviceIo* io = ops_.device_io()) {
    io->clear_empty(batch.cu_seqlens, rows);
    return;
  }
  const size_t row_bytes = static_cast<size_t>(rows.columns()) * size_of(rows.dtype);
  for (int64_t b = 0; b < batch.num_sequences; ++b) {
    if (batch.cu_seqlens[b] != batch.cu_seqlens[b + 1]) continue;
    std::memset(rows.as<char>() + static_cast<size_t>(b) * row_bytes, 0, row_bytes);
  }
}

}  // namespace packhorse
