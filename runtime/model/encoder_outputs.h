// What is made of an encoder's last hidden state, and where it goes.
#pragma once

#include "model/encoder.h"
#include "model/output_slots.h"
#include "packhorse/session.h"

namespace packhorse {

/// All asynchronous, where the ops are. Batches bring the numbers of the batch itself.
class EncoderOutputs {
 public:
  /// The arguments outlive the object.
  EncoderOutputs(const Spec& spec, const ModelWeights& weights, const EncoderBuffers& buffers,
                 Ops& ops)
      : spec_(spec), weights_(weights), buffers_(buffers), ops_(ops) {}

  /// To the host, in float32.
  void read(const BatchView& batch, const RunOutputs& outputs);
  /// Rows of the device to the host; nothing where `to` is null.
  void read_back(TensorView rows, float* to);
  /// To a slot, in the slot's dtypes. For devices with a DeviceIo. `counts`: {T, B} on the device,
  /// zeros for a batch refused there; its `hidden` is zeros, not what another batch has left.
  void write(const BatchView& batch, const int32_t* counts, const DeviceOutputSet& wanted,
             const OutputSlot& to);

 private:
  bool classifies_pooled() const;
  TensorView pool_heads(const BatchView& batch, const EncoderBuffers& buffers);
  TensorView logits(const BatchView& batch, const int32_t* counts, const EncoderBuffers& buffers);
  void clear_empty(const BatchView& batch, const TensorView& rows);

  const Spec& spec_;
  const ModelWeights& weights_;
  const EncoderBuffers& buffers_;
  Ops& ops_;
};

}  // namespace packhorse
