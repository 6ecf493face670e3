// What is made of an encoder's last hidden state, and where it goes.
#pragma once

#include "model/encoder.h"
#include "model/output_layouts.h"
#include "packhorse/session.h"

namespace packhorse {

/// All asynchronous, where the ops are. Batches bring the numbers of the batch itself.
class EncoderOutputs {
 public:
  /// The arguments outlive the object.
  EncoderOutputs(const Spec& spec, const ModelWeights& weights, const EncoderBuffers& buffers,
                 const PerOutput<OutputLayout>& layouts, Ops& ops)
      : spec_(spec), weights_(weights), buffers_(buffers), layouts_(layouts), ops_(ops) {}

  /// To the host, in float32.
  void read(const EncoderInputs& inputs, const RunOutputs& outputs);
  /// Rows of the device to the host; nothing where `to` is null.
  void read_back(TensorView rows, float* to);
  /// To `to`, in its dtypes. For devices with a DeviceIo. `counts`: {T, B} on the device, zeros for
  /// a batch refused there; its `hidden` is zeros, not what another batch has left.
  void write(const EncoderInputs& inputs, const int32_t* counts, const DeviceOutputSet& wanted,
             const OutputBuffers& to);
  /// Rows of output `i` of a batch.
  int64_t rows_of(size_t i, const EncoderInputs& inputs) const;

 private:
  // Everything but `hidden`.
  void make(const EncoderInputs& inputs, const int32_t* counts, const DeviceOutputSet& wanted,
            const OutputBuffers& to);

  const Spec& spec_;
  const ModelWeights& weights_;
  const EncoderBuffers& buffers_;
  const PerOutput<OutputLayout>& layouts_;
  Ops& ops_;
};

}  // namespace packhorse
