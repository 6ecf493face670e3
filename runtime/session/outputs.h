// What is made of the last hidden state, and where it goes: to the host, or to an output slot.
#pragma once

#include "model/encoder.h"
#include "packhorse/session.h"
#include "session/loaded_model.h"

namespace packhorse {

/// All asynchronous, where the ops are. Batches bring the numbers of the batch itself.
class SessionOutputs {
 public:
  /// The arguments outlive the object.
  SessionOutputs(const LoadedModel& model, const ModelBuffers& buffers)
      : model_(model), buffers_(buffers) {}

  /// To the host, in float32.
  void read(const TokenBatch& tokens, const RunOutputs& outputs);
  /// Rows of the device to the host; nothing where `to` is null.
  void read_back(TensorView rows, float* to);
  /// To `to`, in its dtypes. For devices with a DeviceIo. `counts`: {T, B} on the device, zeros for
  /// a batch refused there; its `hidden` is zeros, not what another batch has left.
  void write(const TokenBatch& tokens, const int32_t* counts, const DeviceOutputSet& wanted,
             const OutputBuffers& to);

 private:
  // Everything but `hidden`.
  void make(const TokenBatch& tokens, const int32_t* counts, const DeviceOutputSet& wanted,
            const OutputBuffers& to);
  TensorView hidden(const TokenBatch& tokens) const {
    return buffers_.layers.hidden.first_rows(tokens.batch.num_tokens);
  }

  const LoadedModel& model_;
  const ModelBuffers& buffers_;
};

}  // namespace packhorse
