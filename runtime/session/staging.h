// Brings a batch to where the model reads it: from host memory in one copy, or from elsewhere on
// the device.
#pragma once

#include <cstdint>
#include <memory>

#include "model/batch.h"
#include "ops/device_context.h"
#include "packhorse/packed_patches.h"
#include "packhorse/packed_tokens.h"

namespace packhorse {

/// The offsets of the inputs of a batch in one int32 buffer, which one transfer takes to the
/// device.
struct InputLayout {
  explicit InputLayout(const Capacity& capacity);
  int64_t counts;           // [2] {T, B}
  int64_t reported;         // [1] LoadBatchArgs::reported; 0 in batches from the host
  int64_t cu_seqlens;       // [max_sequences + 1]
  int64_t prediction_rows;  // [max_predictions]
  int64_t ids;              // [max_tokens]
  int64_t type_ids;         // [max_tokens]; where rows are given, TokenBatch::row_numbers
  int64_t position_ids;     // [max_tokens]; of images the grids [max_sequences, 2]
  int64_t size;
};

class Staging {
 public:
  /// `buffer` is device memory of InputLayout::size numbers.
  Staging(const Capacity& capacity, const PackedLimits& limits, int32_t* buffer,
          DeviceContext& device);

  /// Copies a batch in host memory, which must have been checked, to the device. `features`: device
  /// memory for rows that are given beside ids, or empty.
  TokenBatch upload(const PackedTokens& tokens, const TensorView& features);
  /// Copies a batch of images in host memory, which must have been checked. `features` is device
  /// memory for patches, `prefix` the number of rows before those of an image.
  TokenBatch upload(const PackedPatches& patches, const TensorView& features, int64_t prefix);
  /// Copies a batch that lies on the device. A kernel checks its contents and reports an error in
  /// `finding` under the number `run`. The caller must have checked sizes and pointers.
  TokenBatch load(const DeviceTokens& tokens, uint32_t run, InputFinding* finding);
  /// A batch whose exact counts are only on the device, for launches that serve batches up to the
  /// given sizes.
  TokenBatch bounds(int64_t num_tokens, int64_t num_sequences, bool has_type_ids) const;
  /// Counterpart of `bounds` for batches of images. `features`, `prefix`: as for `upload`.
  TokenBatch patch_bounds(int64_t num_tokens, const TensorView& features, int64_t prefix) const;

  /// {T, B} of the most recent batch, in device memory.
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
