#include "session/outputs.h"

namespace packhorse {

void SessionOutputs::read(const TokenBatch& tokens, const RunOutputs& outputs) {
  DeviceOutputSet wanted;
  for (size_t i = 0; i < kOutputNames.size(); ++i) wanted[i] = outputs[i] != nullptr;
  const OutputBuffers& made = buffers_.heads.outputs;
  make(tokens, nullptr, wanted, made);
  for (size_t i = 0; i < kOutputNames.size(); ++i) {
    const OutputLayout& layout = model_.layouts[i];
    if (!wanted[i]) continue;
    read_back(made[i].first_rows(layout.rows(tokens)).column_slice(0, layout.columns), outputs[i]);
  }
}

void SessionOutputs::read_back(TensorView rows, float* to) {
  if (to == nullptr || rows.size() == 0) return;
  if (rows.dtype != DType::kFloat32 || rows.row_stride != rows.columns()) {
    const TensorView converted = buffers_.heads.as_float32.first_rows(rows.rows());
    model_.backend.ops->cast({.x = rows, .out = converted});
    rows = converted;
  }
  model_.backend.device->download(to, rows.data, static_cast<size_t>(rows.size()) * sizeof(float));
}

void SessionOutputs::write(const TokenBatch& tokens, const int32_t* counts,
                           const DeviceOutputSet& wanted, const OutputBuffers& to) {
  if (wanted.hidden) {
    const TensorView from = hidden(tokens);
    const TensorView out = to.hidden.first_rows(tokens.batch.num_tokens);
    model_.backend.ops->cast(
        {.x = from.column_slice(0, out.columns()), .out = out, .row_count = counts});
  }
  make(tokens, counts, wanted, to);
}

void SessionOutputs::make(const TokenBatch& tokens, const int32_t* counts,
                          const DeviceOutputSet& wanted, const OutputBuffers& to) {
  const HeadRun run{tokens, counts, hidden(tokens), *model_.backend.ops};
  make_outputs(run, model_.spec.heads, model_.weights->heads, buffers_.heads, model_.layouts,
               wanted, to);
}

}  // namespace packhorse
