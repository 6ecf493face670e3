// Brings a batch to where the model reads it: from host memory in one copy, or from elsewhere on
// the device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

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
  /// `buffer` is device memory of InputLayout::size numbers. `features`: device memory for patches,
  /// or for rows that are given beside ids; or empty. `prefix`: the number of rows before the
  /// patches of an image.
  Staging(const Capacity& capacity, const PackedLimits& limits, int32_t* buffer,
          const TensorView& features, int64_t prefix, DeviceContext& device);

  /// Copies a batch in host memory, which must have been checked, to the device. `stays`: see
  /// InputUpload::send.
  TokenBatch upload(const PackedTokens& tokens, bool stays);
  TokenBatch upload(const PackedPatches& patches, bool stays);
  /// Copies a batch of images whose patches lie on the device. It must have been checked.
  TokenBatch load(const DevicePatches& patches);
  /// Copies a batch that lies on the device. A kernel checks its contents and reports an error in
  /// `finding` under the number `run`. The caller must have checked sizes and pointers.
  TokenBatch load(const DeviceTokens& tokens, uint32_t run, InputFinding* finding);
  /// A batch whose exact counts are only on the device, for launches that serve batches up to the
  /// given sizes.
  TokenBatch bounds(int64_t num_tokens, int64_t num_sequences, bool has_type_ids) const;
  /// Counterpart of `bounds` for batches of images.
  TokenBatch patch_bounds(int64_t num_tokens) const;

  /// {T, B} of the most recent batch, in device memory.
  const int32_t* counts() const { return buffer_ + layout_.counts; }

 private:
  // Copies everything but the patches of a batch of images.
  TokenBatch upload_grids(std::span<const int32_t> given, int64_t num_patches);
  TokenBatch on_device(bool has_type_ids, bool has_position_ids) const;

  InputLayout layout_;
  PackedLimits limits_;
  int32_t* buffer_;
  TensorView features_;
  int64_t prefix_;
  DeviceContext& device_;
  std::unique_ptr<UploadBuffer> uploads_;
  std::unique_ptr<InputUpload> feature_uploads_;  // where there is memory for features
};

}  // namespace packhorse
