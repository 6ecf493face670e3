// How a batch comes to where the model reads it: from the host in one copy, or from the device.
#pragma once

#include <cstdint>
#include <memory>

#include "model/batch.h"
#include "ops/device_context.h"
#include "packhorse/packed_tokens.h"

namespace packhorse {

/// Where each input of a batch lies in one buffer of int32: one transfer takes them to the device.
struct InputLayout {
  explicit InputLayout(const Capacity& capacity);
  int64_t counts;           // [2] {T, B}
  int64_t reported;         // [1] LoadBatchArgs::reported; 0 in what comes from the host
  int64_t cu_seqlens;       // [max_sequences + 1]
  int64_t prediction_rows;  // [max_predictions]
  int64_t ids;              // [max_tokens]
  int64_t type_ids;         // [max_tokens]
  int64_t position_ids;     // [max_tokens]
  int64_t size;
};

class Staging {
 public:
  /// `buffer`: memory of the device for InputLayout::size numbers.
  Staging(const Capacity& capacity, const PackedLimits& limits, int32_t* buffer,
          DeviceContext& device);

  /// A batch that was checked.
  TokenBatch upload(const PackedTokens& tokens);
  /// A batch that only kernels see: checked there, and reported in `finding` under the run's
  /// number. Sizes and pointers were checked.
  TokenBatch load(const DeviceTokens& tokens, uint32_t run, InputFinding* finding);
  /// A batch whose exact numbers are on the device, for launches that hold up to these.
  TokenBatch bounds(int64_t num_tokens, int64_t num_sequences, bool has_type_ids) const;

  /// {T, B} in the device's memory, of the batch that came last.
  const int32_t* counts() const { return buffer_ + layout_.counts; }

 private:
  TokenBatch on_device(bool has_type_ids, bool has_position_ids) const;

  InputLayout layout_;
  PackedLimits limits_;
  int32_t* buffer_;
  DeviceContext& device_;
  std::unique_ptr<UploadBuffer> uploads_;
};

}  // namespace packhorse
