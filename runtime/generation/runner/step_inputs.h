// Transfer of a step to where the model reads it: the host writes one block of memory, one transfer
// takes it to the device, and the operator begin_step completes it there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/arena.h"
#include "generation/kv_cache/kv_cache.h"
#include "generation/runner/step_runner.h"
#include "model/batch.h"
#include "ops/args/cca.h"
#include "ops/args/sampling.h"
#include "ops/device_context.h"

namespace packhorse {

/// Where each input of a step lies, in bytes from the beginning of the block.
struct StepLayout {
  StepLayout(const RunnerLimits& limits, int64_t pages_of_sequence);
  size_t counts;       // [2] {T, B} int32, as all that says nothing else
  size_t cu_seqlens;   // [max_sequences + 1]
  size_t kv_lens;      // [max_sequences]
  size_t sources;      // [max_sequences], as BeginStepArgs, like the next two
  size_t count_slots;  // [max_sequences]
  size_t page_begins;  // [max_sequences + 1]
  size_t hidden_rows;  // [max_chosen], see RowInputs
  size_t settings;     // [max_chosen] SamplingRow
  size_t ids;          // [max_tokens]
  size_t positions;    // [max_tokens]
  size_t adapters;     // [max_tokens] slots, where there may be adapters
  // Sources of the step, and which of them each sequence attends to, in a model with an encoder.
  size_t source_counts;      // [2] {T, B} of the sources that are read
  size_t source_cu_seqlens;  // [max_sequences + 1]
  size_t source_ids;         // [max_tokens]
  size_t source_adapters;    // [max_tokens] slots, where there may be adapters
  size_t frame_cu_seqlens;   // [max_sequences + 1] of audio
  size_t source_lens;        // [max_sequences] tokens of those that are read
  size_t source_table;       // [max_sequences, source_stride] and their pages
  // Units: neighbouring sequences of one token that attend to the same source, or one sequence.
  size_t attending_counts;      // [2] {T, units}
  size_t attending_cu_seqlens;  // [max_sequences + 1] of units
  size_t attended_lens;         // [max_sequences] tokens of each unit's source
  size_t attended_table;        // [max_sequences, source_stride]
  size_t pages;                 // [max_sequences * table_stride], one sequence after the other
  size_t size;
  int64_t table_stride;
  int64_t source_stride;
};

/// The rows of the last hidden state that tokens are chosen from, on the host or on the device.
struct RowInputs {
  int32_t* hidden_rows = nullptr;   // [max_chosen]
  SamplingRow* settings = nullptr;  // [max_chosen]
};

struct StepBuffers {
  char* inputs = nullptr;    // [StepLayout::size]
  int32_t* table = nullptr;  // [max_sequences, table_stride]
  /// [max_tokens, RunnerLimits::source_features] of audio. They are much larger than all else, and
  /// few steps have any, so that they have a transfer of their own.
  float* features = nullptr;
};
StepBuffers take_step_buffers(const StepLayout& layout, const RunnerLimits& limits, Arena& arena);

class StepInputs {
 public:
  /// `ring`: of the inputs; outlives the object, like `device`.
  StepInputs(const RunnerLimits& limits, const StepLayout& layout, const StepBuffers& buffers,
             HostDeviceRing& ring, DeviceContext& device);

  /// Begins to write the step, where `row_of_slot` says which row of the last step has chosen the
  /// token of a slot. Returns the batch with its exact numbers.
  TokenBatch write(const Step& step, std::span<const int32_t> row_of_slot);
  /// Where the rows of the step that is being written go.
  RowInputs host_rows() const { return rows_at(host_); }
  /// Number of bytes that were written, from the beginning of the block.
  size_t bytes() const { return bytes_; }

  /// Rows that are uploaded apart from a step: `host_rows` of the former, and `send` of the latter.
  RowInputs acquire_rows();
  void send_rows();

  RowInputs device_rows() const { return rows_at(buffers_.inputs); }
  /// The batch as kernels read it whose exact numbers lie on the device, within these bounds.
  TokenBatch bounds(int64_t num_tokens, int64_t num_sequences, int64_t max_seqlen) const;
  /// Arguments of begin_step, which completes the step; `tokens` are those that the step before
  /// chose.
  BeginStepArgs begin(const BatchView& batch, const int32_t* tokens,
                      const TensorView& counts) const;
  /// The pages of `layer` with the table and the lengths of the step that was uploaded; where
  /// `batch` has bounds instead of exact numbers, those of any step.
  PagedKvCache pages(const PagedKvCache& layer, const BatchView& batch) const;
  /// The sources of the step that was uploaded, and the pages of `layer` that they go to.
  TokenBatch sources() const;
  PagedKvCache source_pages(const PagedKvCache& layer) const;
  /// The batch as cross attention takes it: neighbouring sequences of one token that attend to the
  /// same source, as beams do, are one, so that its keys are read once for them. Where `batch` has
  /// bounds instead of exact numbers, so has the result.
  BatchView attending(const BatchView& batch) const;
  /// The pages of `layer` that hold the source of each sequence of `attending`; where `batch` has
  /// bounds instead of exact numbers, those of any step.
  PagedKvCache attended_pages(const PagedKvCache& layer, const BatchView& batch) const;
  /// The latents of `layer` with the table and the lengths that `pages` takes.
  LatentPages latents(const LatentPages& layer) const;
  /// The slots of the adapters of tokens, and of those of sources: [max_tokens], -1 for none.
  const int32_t* adapters() const { return device_ids(layout_.adapters); }
  const int32_t* source_adapters() const { return device_ids(layout_.source_adapters); }

 private:
  template <class T>
  static T* at(char* base, size_t offset) {
    return reinterpret_cast<T*>(base + offset);
  }
  RowInputs rows_at(char* base) const {
    return {at<int32_t>(base, layout_.hidden_rows), at<SamplingRow>(base, layout_.settings)};
  }
  void write_sources(const Step& step);
  void write_attended(const Step& step);
  /// Transfers the features of the step's sources, which are of audio.
  void send_features(const Step& step);
  int32_t* device_ids(size_t offset) const { return at<int32_t>(buffers_.inputs, offset); }

  const RunnerLimits limits_;
  const StepLayout layout_;
  const StepBuffers buffers_;
  HostDeviceRing& ring_;
  const std::unique_ptr<UploadBuffer> row_uploads_;
  const std::unique_ptr<UploadBuffer> feature_uploads_;  // or null
  char* host_ = nullptr;                                 // the step that is being written
  size_t bytes_ = 0;                                     // size of what is written of it
  int64_t max_kv_len_ = 0;                               // the longest sequence of it, in keys
  int64_t num_single_ = 0;    // sequences at the front that have one new token
  BatchView sources_;         // the sources of it
  BatchView attending_;       // the sequences of it, as cross attention takes them
  int64_t max_attended_ = 0;  // tokens of the longest source that a sequence of it attends to
  int64_t num_single_attending_ = 0;  // as num_single_
};

}  // namespace packhorse
