#include "generation/sampling/sampler.h"

#include <algorithm>

namespace packhorse {
namespace {

// Where the results of a chunk of rows lie, in bytes from the beginning of one block. They end with
// what few ask for, so that no more is copied to the host than somebody wants.
struct ResultLayout {
  ResultLayout(int64_t most_rows, size_t num_rows, int32_t num_top)
      : logprobs(static_cast<size_t>(most_rows) * sizeof(int32_t)),
        top_tokens(2 * logprobs),
        top_logprobs(top_tokens + num_rows * static_cast<size_t>(num_top) * sizeof(int32_t)),
        end(top_logprobs + num_rows * static_cast<size_t>(num_top) * sizeof(float)) {}
  size_t tokens = 0;    // [most_rows] int32
  size_t logprobs;      // [most_rows] float
  size_t top_tokens;    // [num_rows, num_top] int32
  size_t top_logprobs;  // [num_rows, num_top] float
  size_t end;
};

template <class T>
T* at(char* base, size_t offset) {
  return reinterpret_cast<T*>(base + offset);
}
template <class T>
const T* at(const char* base, size_t offset) {
  return reinterpret_cast<const T*>(base + offset);
}

}  // namespace

size_t most_result_bytes(const SamplerShape& shape) {
  return ResultLayout(shape.rows, static_cast<size_t>(shape.rows), kMostTopTokens).end;
}

LastingBuffers take_lasting_buffers(const SamplerShape& shape, Arena& arena) {
  const auto biases = static_cast<size_t>(shape.rows * kMostBiases);
  const auto mask_words = static_cast<size_t>(shape.rows * shape.mask_words());
  LastingBuffers buffers;
  buffers.bias_tokens = arena.take_array<int32_t>("bias_tokens", biases);
  buffers.biases = arena.take_array<float>("biases", biases);
  buffers.masks = arena.take_array<uint32_t>("token_masks", mask_words);
  buffers.counts = take_count_buffers(shape.num_slots, shape.vocab_size, arena);
  buffers.results = arena.take_array<char>("chosen_tokens", most_result_bytes(shape));
  return buffers;
}

SamplerBuffers take_sampler_buffers(const SamplerShape& shape, const LastingBuffers& lasting,
                                    const LmWeights& weights, DType dtype, const Ops& ops,
                                    Arena& arena) {
  const int64_t rows = shape.rows;
  SamplerBuffers buffers;
  buffers.lasting = lasting;
  buffers.head = take_lm(weights, rows, HeadArena{arena, ops, {}, dtype});
  // The head's own result, where it is float32 already; else as many columns as that, which are
  // converted sooner than rows of an odd size.
  buffers.logits =
      dtype == DType::kFloat32 && rows > 0
          ? buffers.head.padded
          : arena.take_matrix("logits", rows, weights.decoder.out_features, DType::kFloat32);
  SampleArgs args;
  args.logits = buffers.logits.column_slice(0, shape.vocab_size);
  args.num_biases = rows * kMostBiases;
  buffers.workspace = arena.take("sampling_workspace", ops.sample_workspace(args));
  return buffers;
}

Sampler::Sampler(const SamplerShape& shape, const LmSpec& spec, const LmWeights& weights,
                 const SamplerBuffers& buffers, StepInputs& inputs, HostDeviceRing& ring,
                 Backend& backend)
    : shape_(shape),
      spec_(spec),
      weights_(weights),
      buffers_(buffers),
      inputs_(inputs),
      device_(*backend.device),
      ops_(*backend.ops),
      counts_(buffers.lasting.counts, device_, ops_),
      bias_token_uploads_(device_.make_upload_buffer(
          buffers.lasting.bias_tokens,
          static_cast<size_t>(shape.rows * kMostBiases) * sizeof(int32_t))),
      bias_uploads_(device_.make_upload_buffer(
          buffers.lasting.biases, static_cast<size_t>(shape.rows * kMostBiases) * sizeof(float))),
      mask_uploads_(device_.make_upload_buffer(
          buffers.lasting.masks,
          static_cast<size_t>(shape.rows * shape.mask_words()) * sizeof(uint32_t))),
      ring_(ring),
      row_of_slot_(static_cast<size_t>(shape.num_slots)),
      downloaded_(most_result_bytes(shape)) {
  const auto rows = static_cast<size_t>(shape.rows);
  rows_.reserve(rows);
  for (InFlight& step : steps_) step.rows.reserve(rows);
}

const int32_t* Sampler::tokens() const { return at<int32_t>(buffers_.lasting.results, 0); }

void Sampler::begin(const Step& step) {
  rows_.clear();
  wants_logprobs_ = false;
  wants_top_ = false;
  bool scores = false;
  int32_t first_row = 0;
  for (const SequenceSlice& sequence : step.sequences) {
    first_row += static_cast<int32_t>(sequence.ids.size());
    scores |= !sequence.targets.empty();
    const auto drafts = static_cast<int32_t>(sequence.drafts);
    for (int32_t i = 0; sequence.sample && i <= drafts; ++i) {
      add_sampled(sequence, first_row - 1 - drafts + i, i);
    }
  }
  num_sampled_ = rows_.size();
  counts_.flush();
  plain_ = step.num_tokens == std::ssize(step.sequences) && !scores &&
           num_sampled_ == step.sequences.size() && !wants_top_;
  if (!scores) return;
  first_row = 0;
  for (const SequenceSlice& sequence : step.sequences) {
    add_targets(sequence, first_row);
    first_row += static_cast<int32_t>(sequence.ids.size());
  }
}

void Sampler::add_sampled(const SequenceSlice& sequence, int32_t hidden_row, int32_t number) {
  const StepSampler& sampler = sequence.sampler;
  Row& row = rows_.emplace_back();
  row.hidden_row = hidden_row;
  row.slot = sampler.slot;
  row.sampler = &sampler;
  row.draw = sampler.num_new_tokens + number;
  row.target.wants_logprob = sampler.sampling->logprobs.has_value();
  row.target.chosen = sequence.chosen + number;
  if (!sequence.top.empty()) {
    const size_t num_top = sequence.top.size() / static_cast<size_t>(1 + sequence.drafts);
    row.target.top = sequence.top.subspan(static_cast<size_t>(number) * num_top, num_top);
    wants_top_ = true;
  }
  if (sampler.restart && has_penalties(*sampler.sampling)) counts_.restart(sampler);
  wants_logprobs_ |= row.target.wants_logprob;
}

void Sampler::add_targets(const SequenceSlice& sequence, int32_t first_row) {
  if (sequence.targets.empty()) return;
  const size_t top = sequence.target_top.size() / sequence.targets.size();
  for (size_t i = 0; i < sequence.targets.size(); ++i) {
    Row& row = rows_.emplace_back();
    row.hidden_row = first_row + static_cast<int32_t>(i);
    row.forced = sequence.targets[i];
    row.mask = sequence.target_mask;
    row.target = {.wants_logprob = true,
                  .chosen = nullptr,
                  .target_logprob = &sequence.target_logprobs[i],
                  .top = sequence.target_top.subspan(i * top, top)};
  }
}

void Sampler::write_rows() {
  // Rows that do not fit at once are written later.
  if (rows_.size() <= static_cast<size_t>(shape_.rows)) last_ = write(rows_, inputs_.host_rows());
}

SamplingRow Sampler::settings_of(const Row& row) const {
  if (row.sampler == nullptr) return {.forced = row.forced, .filtered = !row.mask.empty()};
  const StepSampler& sampler = *row.sampler;
  const Sampling& sampling = *sampler.sampling;
  return {.temperature = sampling.temperature,
          .top_p = sampling.top_p,
          .min_p = sampling.min_p,
          .top_k = static_cast<int32_t>(std::min(sampling.top_k, shape_.vocab_size)),
          .repetition_penalty = sampling.repetition_penalty,
          .presence_penalty = sampling.presence_penalty,
          .frequency_penalty = sampling.frequency_penalty,
          .counts = has_penalties(sampling) ? row.slot : -1,
          .of_beam = sampling.num_beams > 1,
          .filtered = sampling.filtered_logprobs,
          .timestamps = sampling.timestamps ? sampling.timestamps->begin : -1,
          .seed = sampler.seed,
          .stream = sampler.stream,
          .draw = static_cast<uint64_t>(row.draw)};
}

void Sampler::add_restrictions(const Row& row, SamplingRow& settings) {
  settings.bias_begin = settings.bias_end = settings.boost_end = num_biases_;
  if (row.sampler == nullptr) return add_target_mask(row, settings);
  const StepSampler& sampler = *row.sampler;
  std::span<const TokenBias> biases = sampler.sampling->logit_bias;
  if (sampler.rules != nullptr) {
    sampler.rules->apply(sampler.history, row.draw, effects_);
    biases = effects_.biases;
  }
  const bool boosts = sampler.rules != nullptr && !effects_.boosted.empty();
  if (biases_ == nullptr && (boosts || !biases.empty())) {
    bias_tokens_ = static_cast<int32_t*>(bias_token_uploads_->acquire());
    biases_ = static_cast<float*>(bias_uploads_->acquire());
  }
  const auto add = [&](int32_t token, float bias) {
    bias_tokens_[num_biases_] = token;
    biases_[num_biases_++] = bias;
  };
  for (const auto& [token, bias] : biases) add(token, bias);
  settings.bias_end = num_biases_;
  if (boosts) {
    for (const int32_t token : effects_.boosted) add(token, effects_.boost);
  }
  settings.boost_end = num_biases_;

  const bool restricts = sampler.rules != nullptr && effects_.restrict_tokens();
  if (!restricts && sampler.mask.empty()) return;
  if (masks_ == nullptr) masks_ = static_cast<uint32_t*>(mask_uploads_->acquire());
  settings.mask = num_masks_++;
  const auto words = static_cast<size_t>(shape_.mask_words());
  const std::span<uint32_t> mask(masks_ + static_cast<size_t>(settings.mask) * words, words);
  if (restricts) {
    settings.flat = write_allowed(effects_, sampler.mask, mask);
  } else {
    std::ranges::copy(sampler.mask, mask.begin());
  }
}

// Rows of one prompt share a mask.
void Sampler::add_target_mask(const Row& row, SamplingRow& settings) {
  if (row.mask.empty()) return;
  if (masks_ == nullptr) masks_ = static_cast<uint32_t*>(mask_uploads_->acquire());
  if (row.mask.data() != target_mask_) {
    target_mask_ = row.mask.data();
    const auto words = static_cast<size_t>(shape_.mask_words());
    std::ranges::copy(row.mask, masks_ + static_cast<size_t>(num_masks_++) * words);
  }
  settings.mask = num_masks_ - 1;
}

Sampler::Chunk Sampler::write(std::span<const Row> rows, const RowInputs& to) {
  Chunk chunk = {.num_rows = rows.size(), .num_top = 0, .wants_logprobs = false};
  bias_tokens_ = nullptr;
  biases_ = nullptr;
  masks_ = nullptr;
  target_mask_ = nullptr;
  num_biases_ = 0;
  num_masks_ = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    to.hidden_rows[i] = row.hidden_row;
    SamplingRow settings = settings_of(row);
    add_restrictions(row, settings);
    to.settings[i] = settings;
    chunk.wants_logprobs |= row.target.wants_logprob;
    chunk.num_top = std::max(chunk.num_top, static_cast<int32_t>(row.target.top.size()));
  }
  if (biases_ != nullptr) {
    bias_token_uploads_->send(static_cast<size_t>(num_biases_) * sizeof(int32_t));
    bias_uploads_->send(static_cast<size_t>(num_biases_) * sizeof(float));
  }
  if (masks_ != nullptr) {
    mask_uploads_->send(static_cast<size_t>(num_masks_ * shape_.mask_words()) * sizeof(uint32_t));
  }
  return chunk;
}

SampleArgs Sampler::sample_args(const Chunk& chunk, int64_t num_rows) const {
  const ResultLayout layout(shape_.rows, chunk.num_rows, chunk.num_top);
  char* const results = buffers_.lasting.results;
  SampleArgs args;
  args.logits = buffers_.logits.first_rows(num_rows).column_slice(0, shape_.vocab_size);
  args.rows = inputs_.device_rows().settings;
  args.bias_tokens = buffers_.lasting.bias_tokens;
  args.biases = buffers_.lasting.biases;
  args.num_biases = shape_.rows * kMostBiases;
  args.masks = buffers_.lasting.masks;
  args.counts = counts();
  args.wants_logprobs = chunk.wants_logprobs;
  args.num_top = chunk.num_top;
  args.tokens = at<int32_t>(results, layout.tokens);
  args.logprobs = at<float>(results, layout.logprobs);
  args.top_tokens = at<int32_t>(results, layout.top_tokens);
  args.top_logprobs = at<float>(results, layout.top_logprobs);
  args.workspace = buffers_.workspace;
  return args;
}

void Sampler::make_logits(const TensorView& input, SampleArgs& args) {
  const TensorView padded = buffers_.head.padded.first_rows(input.rows());
  const bool as_they_are = spec_.scale == 1 && spec_.soft_cap == 0 && ops_.samples(padded.dtype);
  make_lm_logits(spec_, weights_, buffers_.head, input,
                 as_they_are ? padded : buffers_.logits.first_rows(input.rows()), nullptr, ops_);
  if (as_they_are) args.source = padded.column_slice(0, shape_.vocab_size);
}

void Sampler::choose(int64_t most, const int32_t* row_count, bool wants_logprobs,
                     const TensorView& hidden) {
  SampleArgs args = sample_args({.wants_logprobs = wants_logprobs}, most);
  args.row_count = row_count;
  make_logits(hidden.first_rows(most), args);
  ops_.sample(args);
}

void Sampler::choose_all(const TensorView& hidden) {
  const auto at_once = static_cast<size_t>(shape_.rows);
  if (rows_.size() <= at_once) return compute(last_, hidden);
  // Log-probabilities of prompts are waited for here. What is chosen comes last, so that it stays
  // on the device for the next step.
  std::span<const Row> rows = std::span(rows_).subspan(num_sampled_);
  while (!rows.empty()) {
    const std::span<const Row> some = rows.first(std::min(at_once, rows.size()));
    last_ = write(some, inputs_.acquire_rows());
    inputs_.send_rows();
    compute(last_, hidden);
    download(last_, some);
    rows = rows.subspan(some.size());
  }
  rows_.resize(num_sampled_);
  last_ = write(rows_, inputs_.acquire_rows());
  inputs_.send_rows();
  compute(last_, hidden);
}

void Sampler::compute(const Chunk& chunk, const TensorView& hidden) {
  if (chunk.num_rows == 0) return;
  const auto count = static_cast<int64_t>(chunk.num_rows);
  const TensorView input = buffers_.head.input.first_rows(count);
  ops_.cast({.x = hidden, .out = input, .rows = inputs_.device_rows().hidden_rows});
  SampleArgs args = sample_args(chunk, count);
  make_logits(input, args);
  ops_.sample(args);
}

void Sampler::download(const Chunk& chunk, std::span<const Row> rows) {
  const DownloadScope downloads(device_);
  device_.download(downloaded_.data(), buffers_.lasting.results, bytes_of(chunk));
  device_.synchronize();
  deliver(chunk, rows, downloaded_.data());
}

void Sampler::launched() {
  InFlight& step = steps_[(oldest_ + num_in_flight_) % steps_.size()];
  step.chunk = last_;
  ++num_in_flight_;
  for (size_t i = 0; i < num_sampled_; ++i) {
    row_of_slot_[static_cast<size_t>(rows_[i].slot)] = static_cast<int32_t>(i);
  }
  std::swap(step.rows, rows_);
}

void Sampler::wait() {
  const void* results = nullptr;
  try {
    results = ring_.wait();
  } catch (...) {
    ring_.drop();
    num_in_flight_ = 0;
    throw;
  }
  const InFlight& step = steps_[oldest_];
  oldest_ = (oldest_ + 1) % steps_.size();
  --num_in_flight_;
  deliver(step.chunk, step.rows, static_cast<const char*>(results));
}

size_t Sampler::bytes_of(const Chunk& chunk) const {
  if (chunk.num_rows == 0) return 0;
  const ResultLayout layout(shape_.rows, chunk.num_rows, chunk.num_top);
  return chunk.num_top > 0 || chunk.wants_logprobs ? layout.end : layout.logprobs;
}

void Sampler::deliver(const Chunk& chunk, std::span<const Row> rows, const char* results) const {
  const ResultLayout layout(shape_.rows, chunk.num_rows, chunk.num_top);
  const auto* const tokens = at<int32_t>(results, layout.tokens);
  const auto* const logprobs = at<float>(results, layout.logprobs);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Target& target = rows[i].target;
    const float logprob = target.wants_logprob ? logprobs[i] : 0;
    if (target.chosen != nullptr) *target.chosen = {tokens[i], logprob};
    if (target.target_logprob != nullptr) *target.target_logprob = logprob;
    const size_t first = i * static_cast<size_t>(chunk.num_top);
    for (size_t j = 0; j < target.top.size(); ++j) {
      target.top[j] = {at<int32_t>(results, layout.top_tokens)[first + j],
                       at<float>(results, layout.top_logprobs)[first + j]};
    }
  }
}

}  // namespace packhorse
