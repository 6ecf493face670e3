#include "generation/runner/step_inputs.h"

#include <algorithm>

#include "core/math.h"
#include "generation/runner/alignment.h"
#include "generation/sampling/token_counts.h"
#include "model/spec/spec.h"

namespace packhorse {

StepLayout::StepLayout(const RunnerLimits& limits, int64_t pages_of_sequence)
    : table_stride(pages_of_sequence), source_stride(ceil_div(limits.max_source, kPageTokens)) {
  // Blocks begin at multiples of 256 bytes, as buffers of the arena do.
  size_t end = 0;
  const auto take = [&](int64_t count, size_t bytes = sizeof(int32_t)) {
    const size_t begin = end;
    end = round_up(begin + static_cast<size_t>(count) * bytes, 256);
    return begin;
  };
  counts = take(2);
  cu_seqlens = take(limits.max_sequences + 1);
  kv_lens = take(limits.max_sequences);
  sources = take(limits.max_sequences);
  count_slots = take(limits.max_sequences);
  page_begins = take(limits.max_sequences + 1);
  hidden_rows = take(limits.max_chosen());
  settings = take(limits.max_chosen(), sizeof(SamplingRow));
  ids = take(limits.max_tokens);
  positions = take(limits.max_tokens);
  adapters = take(limits.max_adapters > 0 ? limits.max_tokens : 0);
  const bool reads = limits.max_source > 0;
  source_counts = take(reads ? 2 : 0);
  source_cu_seqlens = take(reads ? limits.max_sequences + 1 : 0);
  source_ids = take(reads ? limits.max_tokens : 0);
  source_adapters = take(reads && limits.max_adapters > 0 ? limits.max_tokens : 0);
  const bool hears = limits.source_features > 0;
  frame_cu_seqlens = take(hears ? limits.max_sequences + 1 : 0);
  source_lens = take(reads ? limits.max_sequences : 0);
  source_table = take(limits.max_sequences * source_stride);
  attending_counts = take(reads ? 2 : 0);
  attending_cu_seqlens = take(reads ? limits.max_sequences + 1 : 0);
  attended_lens = take(reads ? limits.max_sequences : 0);
  attended_table = take(limits.max_sequences * source_stride);
  pages = take(limits.max_sequences * table_stride);
  size = end;
}

namespace {

// Tokens of sequences that are one for cross attention: rows of a tile of the kernels for few rows.
constexpr int64_t kMostJoined = 8;

bool attends_alike(const SequenceSlice& a, const SequenceSlice& b) {
  return a.source_tokens == b.source_tokens && std::ranges::equal(a.source_pages, b.source_pages);
}

// Numbers of the frames that a step reads at most.
size_t most_features(const RunnerLimits& limits) {
  return static_cast<size_t>(limits.max_tokens * limits.source_features);
}

}  // namespace

StepBuffers take_step_buffers(const StepLayout& layout, const RunnerLimits& limits, Arena& arena) {
  StepBuffers buffers;
  buffers.inputs = arena.take_array<char>("inputs", layout.size);
  buffers.table = arena.take_array<int32_t>(
      "block_tables", static_cast<size_t>(limits.max_sequences * layout.table_stride));
  if (limits.source_features > 0) {
    buffers.features = arena.take_array<float>("audio_features", most_features(limits));
  }
  return buffers;
}

StepInputs::StepInputs(const RunnerLimits& limits, const StepLayout& layout,
                       const StepBuffers& buffers, HostDeviceRing& ring, DeviceContext& device)
    : limits_(limits),
      layout_(layout),
      buffers_(buffers),
      ring_(ring),
      row_uploads_(device.make_upload_buffer(buffers.inputs + layout.hidden_rows,
                                             layout.ids - layout.hidden_rows)),
      feature_uploads_(buffers.features == nullptr
                           ? nullptr
                           : device.make_upload_buffer(buffers.features,
                                                       most_features(limits) * sizeof(float))) {}

TokenBatch StepInputs::write(const Step& step, std::span<const int32_t> row_of_slot) {
  const auto num_sequences = static_cast<int64_t>(step.sequences.size());
  host_ = static_cast<char*>(ring_.acquire());
  const auto numbers = [&](size_t offset) { return at<int32_t>(host_, offset); };
  int32_t* const cu_seqlens = numbers(layout_.cu_seqlens);
  int32_t* const kv_lens = numbers(layout_.kv_lens);
  int32_t* const sources = numbers(layout_.sources);
  int32_t* const count_slots = numbers(layout_.count_slots);
  int32_t* const page_begins = numbers(layout_.page_begins);
  int32_t* const ids = numbers(layout_.ids);
  int32_t* const positions = numbers(layout_.positions);
  int32_t* const adapters = limits_.max_adapters > 0 ? numbers(layout_.adapters) : nullptr;
  int32_t* const pages = numbers(layout_.pages);
  numbers(layout_.counts)[0] = static_cast<int32_t>(step.num_tokens);
  numbers(layout_.counts)[1] = static_cast<int32_t>(num_sequences);
  int32_t token = 0;
  int32_t page = 0;
  int64_t longest = 0;
  max_kv_len_ = 0;
  num_single_ = 0;
  for (int64_t i = 0; i < num_sequences; ++i) {
    const SequenceSlice& sequence = step.sequences[static_cast<size_t>(i)];
    const StepSampler& sampler = sequence.sampler;
    cu_seqlens[i] = token;
    kv_lens[i] = static_cast<int32_t>(sequence.kv_len());
    page_begins[i] = page;
    std::copy(sequence.pages.begin(), sequence.pages.end(), pages + page);
    page += static_cast<int32_t>(sequence.pages.size());
    sources[i] = sequence.pending ? row_of_slot[static_cast<size_t>(sampler.slot)] : -1;
    const bool counts = sequence.sample && !sampler.restart && has_penalties(*sampler.sampling);
    count_slots[i] = counts ? sampler.slot : -1;
    auto position = static_cast<int32_t>(sequence.position);
    for (const int32_t id : sequence.ids) {
      ids[token] = id;
      positions[token] = position++;
      if (adapters != nullptr) adapters[token] = sequence.adapter;
      ++token;
    }
    longest = std::max(longest, static_cast<int64_t>(sequence.ids.size()));
    if (longest == 1) num_single_ = i + 1;
    max_kv_len_ = std::max(max_kv_len_, sequence.kv_len());
  }
  page_begins[num_sequences] = page;
  // A graph goes through max_sequences sequences. Those beyond the step must be empty.
  for (int64_t i = num_sequences; i <= limits_.max_sequences; ++i) {
    cu_seqlens[i] = token;
    if (i < limits_.max_sequences) kv_lens[i] = 0;
  }
  if (limits_.max_source > 0) {
    write_sources(step);
    write_attended(step);
  }
  if (feature_uploads_ != nullptr && !step.sources.empty()) send_features(step);
  bytes_ = layout_.pages + static_cast<size_t>(page) * sizeof(int32_t);
  TokenBatch batch = bounds(step.num_tokens, num_sequences, longest);
  batch.batch.counts = nullptr;
  return batch;
}

void StepInputs::write_sources(const Step& step) {
  const auto numbers = [&](size_t offset) { return at<int32_t>(host_, offset); };
  int32_t* const cu_seqlens = numbers(layout_.source_cu_seqlens);
  const auto num_sources = static_cast<int64_t>(step.sources.size());
  sources_ = {};
  int32_t token = 0;
  for (int64_t i = 0; i < num_sources; ++i) {
    const SourceSlice& source = step.sources[static_cast<size_t>(i)];
    const auto length = std::ssize(source.ids);
    cu_seqlens[i] = token;
    numbers(layout_.source_lens)[i] = static_cast<int32_t>(length);
    std::ranges::copy(source.ids, numbers(layout_.source_ids) + token);
    if (limits_.max_adapters > 0) {
      std::fill_n(numbers(layout_.source_adapters) + token, length, source.adapter);
    }
    if (limits_.source_features > 0) {
      const auto stride = static_cast<int32_t>(kAudioStride);
      numbers(layout_.frame_cu_seqlens)[i] = stride * token;
      numbers(layout_.frame_cu_seqlens)[i + 1] = stride * (token + static_cast<int32_t>(length));
    }
    std::ranges::copy(source.pages, numbers(layout_.source_table) + i * layout_.source_stride);
    token += static_cast<int32_t>(length);
    sources_.max_seqlen = std::max(sources_.max_seqlen, int64_t{length});
  }
  cu_seqlens[num_sources] = token;
  numbers(layout_.source_counts)[0] = token;
  numbers(layout_.source_counts)[1] = static_cast<int32_t>(num_sources);
  sources_.num_tokens = token;
  sources_.num_sequences = num_sources;
  sources_.cu_seqlens = device_ids(layout_.source_cu_seqlens);
}

void StepInputs::write_attended(const Step& step) {
  const auto numbers = [&](size_t offset) { return at<int32_t>(host_, offset); };
  int32_t* const cu_seqlens = numbers(layout_.attending_cu_seqlens);
  // Weights of attention are asked for by sequence, so that sequences stay what they are.
  const bool joins = !wants_alignment(step);
  attending_ = {};
  max_attended_ = 0;
  num_single_attending_ = 0;
  int32_t token = 0;
  int64_t length = 0;  // tokens of the last unit
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    const SequenceSlice& sequence = step.sequences[i];
    const bool joined = joins && i > 0 && length < kMostJoined && sequence.ids.size() == 1 &&
                        step.sequences[i - 1].ids.size() == 1 &&
                        attends_alike(step.sequences[i - 1], sequence);
    if (!joined) {
      const int64_t unit = attending_.num_sequences++;
      cu_seqlens[unit] = token;
      numbers(layout_.attended_lens)[unit] = static_cast<int32_t>(sequence.source_tokens);
      std::ranges::copy(sequence.source_pages,
                        numbers(layout_.attended_table) + unit * layout_.source_stride);
      max_attended_ = std::max(max_attended_, sequence.source_tokens);
      length = 0;
    }
    length += std::ssize(sequence.ids);
    token += static_cast<int32_t>(sequence.ids.size());
    attending_.max_seqlen = std::max(attending_.max_seqlen, length);
  }
  attending_.num_tokens = token;
  for (int64_t i = attending_.num_sequences; i <= limits_.max_sequences; ++i) {
    cu_seqlens[i] = token;
    if (i < limits_.max_sequences) numbers(layout_.attended_lens)[i] = 0;
  }
  while (num_single_attending_ < attending_.num_sequences &&
         cu_seqlens[num_single_attending_ + 1] <= num_single_attending_ + 1) {
    ++num_single_attending_;
  }
  numbers(layout_.attending_counts)[0] = token;
  numbers(layout_.attending_counts)[1] = static_cast<int32_t>(attending_.num_sequences);
  attending_.cu_seqlens = device_ids(layout_.attending_cu_seqlens);
}

void StepInputs::send_features(const Step& step) {
  auto* const begin = static_cast<float*>(feature_uploads_->acquire());
  float* end = begin;
  for (const SourceSlice& source : step.sources) end = std::ranges::copy(source.features, end).out;
  feature_uploads_->send(static_cast<size_t>(end - begin) * sizeof(float));
}

TokenBatch StepInputs::sources() const {
  TokenBatch batch;
  batch.batch = sources_;
  batch.ids = device_ids(layout_.source_ids);
  if (const int64_t features = limits_.source_features; features > 0) {
    batch.features = TensorView(buffers_.features, DType::kFloat32,
                                kAudioStride * sources_.num_tokens, features / kAudioStride);
    batch.frame_cu_seqlens = device_ids(layout_.frame_cu_seqlens);
  }
  return batch;
}

PagedKvCache StepInputs::source_pages(const PagedKvCache& layer) const {
  PagedKvCache pages = layer;
  pages.table = device_ids(layout_.source_table);
  pages.table_stride = layout_.source_stride;
  pages.kv_lens = device_ids(layout_.source_lens);
  pages.max_kv_len = sources_.max_seqlen;
  return pages;
}

BatchView StepInputs::attending(const BatchView& batch) const {
  if (batch.counts == nullptr) return attending_;
  BatchView attending = batch;
  attending.max_seqlen = std::max(batch.max_seqlen, std::min(kMostJoined, batch.num_tokens));
  attending.cu_seqlens = device_ids(layout_.attending_cu_seqlens);
  attending.counts = device_ids(layout_.attending_counts);
  return attending;
}

PagedKvCache StepInputs::attended_pages(const PagedKvCache& layer, const BatchView& batch) const {
  const bool exact = batch.counts == nullptr;
  PagedKvCache pages = layer;
  pages.table = device_ids(layout_.attended_table);
  pages.table_stride = layout_.source_stride;
  pages.kv_lens = device_ids(layout_.attended_lens);
  pages.max_kv_len = exact ? max_attended_ : limits_.max_source;
  pages.num_single = exact ? num_single_attending_ : 0;
  return pages;
}

RowInputs StepInputs::acquire_rows() {
  // The buffer begins with the rows.
  return rows_at(static_cast<char*>(row_uploads_->acquire()) - layout_.hidden_rows);
}

void StepInputs::send_rows() { row_uploads_->send(layout_.ids - layout_.hidden_rows); }

TokenBatch StepInputs::bounds(int64_t num_tokens, int64_t num_sequences, int64_t max_seqlen) const {
  TokenBatch batch;
  batch.batch.num_tokens = num_tokens;
  batch.batch.num_sequences = num_sequences;
  batch.batch.max_seqlen = max_seqlen;
  batch.batch.cu_seqlens = device_ids(layout_.cu_seqlens);
  batch.batch.counts = device_ids(layout_.counts);
  batch.ids = device_ids(layout_.ids);
  batch.position_ids = device_ids(layout_.positions);
  return batch;
}

BeginStepArgs StepInputs::begin(const BatchView& batch, const int32_t* tokens,
                                const TensorView& counts) const {
  return {.batch = batch,
          .ids = device_ids(layout_.ids),
          .sources = device_ids(layout_.sources),
          .tokens = tokens,
          .count_slots = device_ids(layout_.count_slots),
          .counts = counts,
          .page_begins = device_ids(layout_.page_begins),
          .pages = device_ids(layout_.pages),
          .table = buffers_.table,
          .table_stride = layout_.table_stride};
}

PagedKvCache StepInputs::pages(const PagedKvCache& layer, const BatchView& batch) const {
  const bool exact = batch.counts == nullptr;
  PagedKvCache pages = layer;
  pages.table = buffers_.table;
  pages.table_stride = layout_.table_stride;
  pages.kv_lens = device_ids(layout_.kv_lens);
  pages.max_kv_len = exact ? max_kv_len_ : limits_.max_context;
  pages.num_single = exact ? num_single_ : 0;
  return pages;
}

LatentPages StepInputs::latents(const LatentPages& layer) const {
  LatentPages latents = layer;
  latents.table = buffers_.table;
  latents.table_stride = layout_.table_stride;
  latents.kv_lens = device_ids(layout_.kv_lens);
  return latents;
}

}  // namespace packhorse
