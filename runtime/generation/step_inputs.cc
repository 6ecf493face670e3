#include "generation/step_inputs.h"

#include <algorithm>

namespace packhorse {

StepLayout::StepLayout(const RunnerLimits& limits, int64_t pages_of_sequence) {
  // Blocks begin at multiples of 256 bytes, as buffers of the arena do.
  const auto aligned = [](int64_t count) { return (count + 63) / 64 * 64; };
  counts = 0;
  cu_seqlens = aligned(2);
  kv_lens = cu_seqlens + aligned(limits.max_sequences + 1);
  ids = kv_lens + aligned(limits.max_sequences);
  positions = ids + aligned(limits.max_tokens);
  adapters = positions + aligned(limits.max_tokens);
  table = adapters + aligned(limits.max_adapters > 0 ? limits.max_tokens : 0);
  table_stride = pages_of_sequence;
  size = table + aligned(limits.max_sequences * table_stride);
}

StepInputs::StepInputs(const RunnerLimits& limits, const StepLayout& layout, int32_t* buffer,
                       DeviceContext& device)
    : limits_(limits),
      layout_(layout),
      buffer_(buffer),
      uploads_(
          device.make_upload_buffer(buffer, static_cast<size_t>(layout.size) * sizeof(int32_t))) {}

TokenBatch StepInputs::upload(const Step& step) {
  const auto num_sequences = static_cast<int64_t>(step.sequences.size());
  auto* const host = static_cast<int32_t*>(uploads_->acquire());
  host[layout_.counts] = static_cast<int32_t>(step.num_tokens);
  host[layout_.counts + 1] = static_cast<int32_t>(num_sequences);
  int32_t token = 0;
  int64_t longest = 0;
  max_kv_len_ = 0;
  for (int64_t i = 0; i < num_sequences; ++i) {
    const StepSequence& sequence = step.sequences[static_cast<size_t>(i)];
    host[layout_.cu_seqlens + i] = token;
    host[layout_.kv_lens + i] = static_cast<int32_t>(sequence.kv_len());
    std::copy(sequence.pages.begin(), sequence.pages.end(),
              host + layout_.table + i * layout_.table_stride);
    for (size_t j = 0; j < sequence.ids.size(); ++j, ++token) {
      host[layout_.ids + token] = sequence.ids[j];
      host[layout_.positions + token] =
          static_cast<int32_t>(sequence.position) + static_cast<int32_t>(j);
      if (limits_.max_adapters > 0) host[layout_.adapters + token] = sequence.adapter;
    }
    longest = std::max(longest, static_cast<int64_t>(sequence.ids.size()));
    max_kv_len_ = std::max(max_kv_len_, sequence.kv_len());
  }
  // A recording goes through max_sequences sequences. Those beyond the step must be empty.
  for (int64_t i = num_sequences; i <= limits_.max_sequences; ++i) {
    host[layout_.cu_seqlens + i] = token;
    if (i < limits_.max_sequences) host[layout_.kv_lens + i] = 0;
  }
  uploads_->send(static_cast<size_t>(layout_.table + num_sequences * layout_.table_stride) *
                 sizeof(int32_t));
  TokenBatch batch = bounds(step.num_tokens, num_sequences, longest);
  batch.batch.counts = nullptr;
  return batch;
}

TokenBatch StepInputs::bounds(int64_t num_tokens, int64_t num_sequences, int64_t max_seqlen) const {
  TokenBatch batch;
  batch.batch.num_tokens = num_tokens;
  batch.batch.num_sequences = num_sequences;
  batch.batch.max_seqlen = max_seqlen;
  batch.batch.cu_seqlens = buffer_ + layout_.cu_seqlens;
  batch.batch.counts = buffer_ + layout_.counts;
  batch.ids = buffer_ + layout_.ids;
  batch.position_ids = buffer_ + layout_.positions;
  return batch;
}

KvPages StepInputs::pages(const KvPages& layer, int64_t max_kv_len) const {
  KvPages pages = layer;
  pages.table = buffer_ + layout_.table;
  pages.table_stride = layout_.table_stride;
  pages.kv_lens = buffer_ + layout_.kv_lens;
  pages.max_kv_len = max_kv_len;
  return pages;
}

}  // namespace packhorse
