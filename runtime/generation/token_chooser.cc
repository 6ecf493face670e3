#include "generation/token_chooser.h"

#include <algorithm>
#include <cstring>

namespace packhorse {
namespace {

// Where the inputs of the rows lie, in bytes from the beginning of one block. What most steps bring
// comes first, so that they send no more than that.
struct InputLayout {
  explicit InputLayout(const ChooserShape& shape) {
    const auto after = [](size_t begin, int64_t count, size_t bytes) {
      return (begin + static_cast<size_t>(count) * bytes + 255) / 256 * 256;
    };
    settings = after(0, shape.rows, sizeof(int32_t));
    bias_tokens = after(settings, shape.rows, sizeof(SamplingRow));
    biases = after(bias_tokens, shape.rows * kMostBiases, sizeof(int32_t));
    masks = after(biases, shape.rows * kMostBiases, sizeof(float));
    size = after(masks, shape.rows * shape.mask_words(), sizeof(uint32_t));
  }
  size_t hidden_rows = 0;  // [rows] int32
  size_t settings;         // [rows] SamplingRow
  size_t bias_tokens;      // [rows * kMostBiases] int32
  size_t biases;           // [rows * kMostBiases] float
  size_t masks;            // [rows, mask_words] uint32
  size_t size;
};

template <class T>
T* at(char* base, size_t offset) {
  return reinterpret_cast<T*>(base + offset);
}

bool has_penalties(const Sampling& sampling) {
  return sampling.repetition_penalty != 1 || sampling.presence_penalty != 0 ||
         sampling.frequency_penalty != 0;
}

}  // namespace

ChooserBuffers take_chooser_buffers(const ChooserShape& shape, const CountBuffers& counts,
                                    const LmWeights& weights, DType dtype, const Ops& ops,
                                    Arena& arena) {
  const int64_t rows = shape.rows;
  const auto count = static_cast<size_t>(rows);
  ChooserBuffers buffers;
  buffers.input = arena.take_array<char>("sampling_inputs", InputLayout(shape).size);
  buffers.head = take_lm(weights, rows, HeadArena{arena, ops, {}, dtype});
  buffers.logits = arena.take_matrix("logits", rows, shape.vocab_size, DType::kFloat32);
  buffers.tokens = arena.take_array<int32_t>("tokens", count);
  buffers.logprobs = arena.take_array<float>("logprobs", count);
  buffers.top_tokens = arena.take_array<int32_t>("top_tokens", count * kMostTopTokens);
  buffers.top_logprobs = arena.take_array<float>("top_logprobs", count * kMostTopTokens);
  SampleArgs args;
  args.logits = buffers.logits;
  args.num_biases = rows * kMostBiases;
  buffers.workspace = arena.take("sampling_workspace", ops.sample_workspace(args));
  buffers.counts = counts;
  return buffers;
}

TokenChooser::TokenChooser(const ChooserShape& shape, const LmSpec& spec, const LmWeights& weights,
                           const ChooserBuffers& buffers, Backend& backend)
    : shape_(shape),
      spec_(spec),
      weights_(weights),
      buffers_(buffers),
      device_(*backend.device),
      ops_(*backend.ops),
      counts_(buffers.counts, device_, ops_),
      uploads_(device_.make_upload_buffer(buffers.input, InputLayout(shape).size)),
      tokens_(static_cast<size_t>(shape.rows)),
      logprobs_(static_cast<size_t>(shape.rows)),
      top_tokens_(static_cast<size_t>(shape.rows * kMostTopTokens)),
      top_logprobs_(static_cast<size_t>(shape.rows * kMostTopTokens)) {
  rows_.reserve(static_cast<size_t>(shape.rows));
}

void TokenChooser::run(const Step& step, const TensorView& hidden) {
  collect(step);
  const std::span<const Row> rows = rows_;
  const auto at_once = static_cast<size_t>(shape_.rows);
  for (size_t first = 0; first < rows.size(); first += at_once) {
    run(rows.subspan(first, std::min(at_once, rows.size() - first)), hidden);
  }
}

void TokenChooser::collect(const Step& step) {
  rows_.clear();
  int32_t first_row = 0;
  for (const StepSequence& sequence : step.sequences) {
    const auto num_rows = static_cast<int32_t>(sequence.ids.size());
    if (sequence.sample) {
      const auto drafts = static_cast<int32_t>(sequence.drafts);
      for (int32_t i = 0; i <= drafts; ++i) {
        rows_.push_back(sampled_row(sequence, first_row + num_rows - 1 - drafts + i, i));
      }
      if (has_penalties(*sequence.sampler.sampling)) counts_.update(sequence.sampler);
    }
    const size_t top =
        sequence.targets.empty() ? 0 : sequence.target_top.size() / sequence.targets.size();
    for (size_t i = 0; i < sequence.targets.size(); ++i) {
      Row row;
      row.hidden_row = first_row + static_cast<int32_t>(i);
      row.settings.forced = sequence.targets[i];
      row.wants_logprob = true;
      row.target_logprob = &sequence.target_logprobs[i];
      row.top = sequence.target_top.subspan(i * top, top);
      rows_.push_back(row);
    }
    first_row += num_rows;
  }
  counts_.flush();
}

TokenChooser::Row TokenChooser::sampled_row(const StepSequence& sequence, int32_t hidden_row,
                                            int32_t number) const {
  const size_t num_top = sequence.top.size() / static_cast<size_t>(1 + sequence.drafts);
  const StepSampler& sampler = sequence.sampler;
  const Sampling& sampling = *sampler.sampling;
  Row row;
  row.hidden_row = hidden_row;
  row.sampling = &sampling;
  row.mask = sampler.mask;
  row.wants_logprob = sampling.logprobs.has_value();
  row.chosen = sequence.chosen + number;
  row.top = sequence.top.subspan(static_cast<size_t>(number) * num_top, num_top);
  row.settings.temperature = sampling.temperature;
  row.settings.top_p = sampling.top_p;
  row.settings.min_p = sampling.min_p;
  row.settings.top_k = static_cast<int32_t>(std::min(sampling.top_k, shape_.vocab_size));
  row.settings.repetition_penalty = sampling.repetition_penalty;
  row.settings.presence_penalty = sampling.presence_penalty;
  row.settings.frequency_penalty = sampling.frequency_penalty;
  row.settings.of_beam = sampling.num_beams > 1;
  row.settings.seed = sampler.seed;
  row.settings.stream = sampler.stream;
  row.settings.draw = static_cast<uint64_t>(sampler.num_new_tokens + number);
  if (has_penalties(sampling)) row.settings.counts = sampler.slot;
  return row;
}

SampleArgs TokenChooser::upload(std::span<const Row> rows) {
  const InputLayout layout(shape_);
  auto* const host = static_cast<char*>(uploads_->acquire());
  SampleArgs args;
  size_t end = layout.bias_tokens;
  int32_t num_biases = 0;
  int32_t num_masks = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    at<int32_t>(host, layout.hidden_rows)[i] = row.hidden_row;
    SamplingRow settings = row.settings;
    settings.bias_begin = num_biases;
    if (row.sampling != nullptr) {
      for (const auto& [token, bias] : row.sampling->logit_bias) {
        at<int32_t>(host, layout.bias_tokens)[num_biases] = token;
        at<float>(host, layout.biases)[num_biases++] = bias;
      }
    }
    settings.bias_end = num_biases;
    if (!row.mask.empty()) {
      settings.mask = num_masks++;
      std::memcpy(at<uint32_t>(host, layout.masks) + settings.mask * shape_.mask_words(),
                  row.mask.data(), row.mask.size_bytes());
    }
    at<SamplingRow>(host, layout.settings)[i] = settings;
    args.wants_logprobs |= row.wants_logprob;
    args.num_top = std::max(args.num_top, static_cast<int32_t>(row.top.size()));
  }
  if (num_biases > 0) end = layout.biases + static_cast<size_t>(num_biases) * sizeof(float);
  if (num_masks > 0) {
    end = layout.masks + static_cast<size_t>(num_masks * shape_.mask_words()) * sizeof(uint32_t);
  }
  uploads_->send(end);
  args.rows = at<SamplingRow>(buffers_.input, layout.settings);
  args.bias_tokens = at<int32_t>(buffers_.input, layout.bias_tokens);
  args.biases = at<float>(buffers_.input, layout.biases);
  args.num_biases = num_biases;
  args.masks = at<uint32_t>(buffers_.input, layout.masks);
  args.counts = buffers_.counts.counts;
  args.tokens = buffers_.tokens;
  args.logprobs = buffers_.logprobs;
  args.top_tokens = buffers_.top_tokens;
  args.top_logprobs = buffers_.top_logprobs;
  args.workspace = buffers_.workspace;
  return args;
}

void TokenChooser::run(std::span<const Row> rows, const TensorView& hidden) {
  SampleArgs args = upload(rows);
  const auto count = static_cast<int64_t>(rows.size());
  const TensorView input = buffers_.head.input.first_rows(count);
  ops_.gather_rows({.x = hidden,
                    .rows = at<int32_t>(buffers_.input, InputLayout(shape_).hidden_rows),
                    .out = input});
  args.logits = buffers_.logits.first_rows(count);
  make_lm_logits(spec_, weights_, buffers_.head, input, args.logits, nullptr, ops_);
  ops_.sample(args);
  read(rows, args);
}

void TokenChooser::read(std::span<const Row> rows, const SampleArgs& args) {
  const DownloadScope downloads(device_);
  const auto download = [&](auto& to, const auto* from, size_t count) {
    device_.download(to.data(), from, count * sizeof(*from));
  };
  const size_t top = static_cast<size_t>(args.num_top);
  download(tokens_, args.tokens, rows.size());
  if (args.wants_logprobs) download(logprobs_, args.logprobs, rows.size());
  if (top > 0) {
    download(top_tokens_, args.top_tokens, rows.size() * top);
    download(top_logprobs_, args.top_logprobs, rows.size() * top);
  }
  device_.synchronize();
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    if (row.chosen != nullptr) {
      *row.chosen = {tokens_[i], row.wants_logprob ? logprobs_[i] : 0};
    }
    if (row.target_logprob != nullptr) *row.target_logprob = logprobs_[i];
    for (size_t j = 0; j < row.top.size(); ++j) {
      row.top[j] = {top_tokens_[i * top + j], top_logprobs_[i * top + j]};
    }
  }
}

}  // namespace packhorse
