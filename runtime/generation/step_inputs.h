// How a step comes to where the model reads it: the host writes one block of memory, and one
// transfer takes it to the device.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "generation/kv_cache.h"
#include "generation/step_runner.h"
#include "model/batch.h"
#include "ops/device_context.h"

namespace packhorse {

/// Where each input of a step lies, in int32 numbers from the beginning of the block.
struct StepLayout {
  StepLayout(const RunnerLimits& limits, int64_t pages_of_sequence);
  int64_t counts;      // [2] {T, B}
  int64_t cu_seqlens;  // [max_sequences + 1]
  int64_t kv_lens;     // [max_sequences]
  int64_t ids;         // [max_tokens]
  int64_t positions;   // [max_tokens]
  int64_t adapters;    // [max_tokens] slots, where there may be adapters
  int64_t table;       // [max_sequences, table_stride]
  int64_t table_stride;
  int64_t size;
};

class StepInputs {
 public:
  /// `buffer`: device memory for StepLayout::size numbers.
  StepInputs(const RunnerLimits& limits, const StepLayout& layout, int32_t* buffer,
             DeviceContext& device);

  /// Uploads the step. Returns the batch with its exact numbers.
  TokenBatch upload(const Step& step);
  /// The batch as kernels read it whose exact numbers lie on the device, within these bounds.
  TokenBatch bounds(int64_t num_tokens, int64_t num_sequences, int64_t max_seqlen) const;
  /// The pages of `layer` with the table and the lengths of the step that was uploaded, none of
  /// which is above `max_kv_len`.
  KvPages pages(const KvPages& layer, int64_t max_kv_len) const;
  /// The slots of the tokens' adapters: [max_tokens], -1 for none.
  const int32_t* adapters() const { return buffer_ + layout_.adapters; }
  /// The longest sequence of the step that was uploaded, in keys.
  int64_t max_kv_len() const { return max_kv_len_; }

 private:
  const RunnerLimits limits_;
  const StepLayout layout_;
  int32_t* const buffer_;
  const std::unique_ptr<UploadBuffer> uploads_;
  int64_t max_kv_len_ = 0;
};

}  // namespace packhorse
