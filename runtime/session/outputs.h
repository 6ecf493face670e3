// Runs the heads on the last hidden state and sends the outputs to host memory or to an output
// slot.
#pragma once

#include "model/transformer.h"
#include "packhorse/session.h"
#include "session/loaded_model.h"

namespace packhorse {

/// All methods are asynchronous if the operators are. The numbers in the batches that they take are
/// exact, not upper bounds.
class SessionOutputs {
 public:
  /// The arguments must outlive this object.
  SessionOutputs(const LoadedModel& model, const ModelBuffers& buffers)
      : model_(model), buffers_(buffers) {}

  /// Computes the outputs whose pointer is not null and copies them to host memory as float32.
  void read(const TokenBatch& tokens, const RunOutputs& outputs);
  /// Copies rows from the device to host memory as float32. Does nothing if `to` is null.
  void read_back(TensorView rows, float* to);
  /// Computes the wanted outputs into `to`, in the dtypes of its views. Only for devices with a
  /// DeviceIo. `counts` holds {T, B} on the device. They are zeros if a kernel found wrong offsets
  /// in the batch; all outputs, `hidden` included, are then zeros rather than rows that an earlier
  /// batch left.
  void write(const TokenBatch& tokens, const int32_t* counts, const DeviceOutputSet& wanted,
             const OutputBuffers& to);

 private:
  // Computes every wanted output except `hidden`.
  void make(const TokenBatch& tokens, const int32_t* counts, const DeviceOutputSet& wanted,
            const OutputBuffers& to);
  TensorView hidden(const TokenBatch& tokens) const {
    return buffers_.layers.hidden.first_rows(tokens.batch.num_tokens);
  }

  const LoadedModel& model_;
  const ModelBuffers& buffers_;
};

}  // namespace packhorse
