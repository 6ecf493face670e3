#include "model/encoder_outputs.h"

#include "model/heads.h"

namespace packhorse {

int64_t EncoderOutputs::rows_of(size_t i, const EncoderInputs& inputs) const {
  return layouts_[i].rows(inputs.batch.num_tokens, inputs.batch.num_sequences,
                          inputs.num_predictions);
}

void EncoderOutputs::read(const EncoderInputs& inputs, const RunOutputs& outputs) {
  DeviceOutputSet wanted;
  for (size_t i = 0; i < kOutputNames.size(); ++i) wanted[i] = outputs[i] != nullptr;
  make(inputs, nullptr, wanted, buffers_.outputs);
  for (size_t i = 0; i < kOutputNames.size(); ++i) {
    if (wanted[i]) read_back(buffers_.outputs[i].first_rows(rows_of(i, inputs)), outputs[i]);
  }
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

void EncoderOutputs::write(const EncoderInputs& inputs, const int32_t* counts,
                           const DeviceOutputSet& wanted, const OutputBuffers& to) {
  if (wanted.hidden) {
    const int64_t rows = inputs.batch.num_tokens;
    ops_.device_io()->copy_rows(buffers_.hidden.first_rows(rows), to.hidden.first_rows(rows),
                                counts);
  }
  make(inputs, counts, wanted, to);
}

void EncoderOutputs::make(const EncoderInputs& inputs, const int32_t* counts,
                          const DeviceOutputSet& wanted, const OutputBuffers& to) {
  const Heads heads(spec_, weights_, inputs, counts, buffers_, ops_);
  if (wanted.embedding) heads.embedding(to.embedding);
  const bool classifies_pooled =
      spec_.heads.classifier && spec_.heads.classifier->input == ClassifierSpec::Input::kPooler;
  if (wanted.pooled || (wanted.logits && classifies_pooled)) heads.pooled(to.pooled);
  if (wanted.logits) heads.logits(to.pooled, to.logits);
  if (wanted.token_weights) heads.token_weights(to.token_weights);
  if (wanted.vectors) heads.vectors(to.vectors);
  if (wanted.sparse) heads.sparse(to.sparse);
  if (wanted.predictions) heads.predictions(to.predictions);
}

}  // namespace packhorse
