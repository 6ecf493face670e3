// How a batch comes to where the encoder reads it: from the host in one copy, or from the device.
#pragma once

#include <cstdint>
#include <vector>

#include "model/encoder.h"
#include "ops/ops.h"
#include "packhorse/packed_tokens.h"

namespace packhorse {

class BatchInputs {
 public:
  /// `buffer`: EncoderBuffers::inputs.
  BatchInputs(const Capacity& capacity, const PackedLimits& limits, int32_t* buffer, Ops& ops);

  /// A batch that was checked.
  EncoderInputs upload(const PackedTokens& tokens);
  /// A batch that only kernels see: checked there, and reported in `finding` under the run's
  /// number. Sizes and pointers were checked.
  EncoderInputs load(const DeviceTokens& tokens, uint32_t run, InputFinding* finding);
  /// Inputs whose exact numbers are on the device, for launches that hold up to these.
  EncoderInputs bounds(int64_t num_tokens, int64_t num_sequences, bool has_type_ids) const;

  /// {T, B} in the device's memory, of the batch that came last.
  const int32_t* counts() const { return buffer_ + layout_.counts; }

 private:
  EncoderInputs on_device(bool has_type_ids, bool has_position_ids) const;

  InputLayout layout_;
  PackedLimits limits_;
  int32_t* buffer_;
  Ops& ops_;
  std::vector<int32_t> host_;
};

}  // namespace packhorse
