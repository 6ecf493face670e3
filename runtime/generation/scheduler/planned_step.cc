#include "generation/scheduler/planned_step.h"

#include <algorithm>
#include <span>
#include <utility>

namespace packhorse {
namespace {

// Stands for a token that the host does not know yet.
constexpr int32_t kPendingId = 0;

// The step's sequence has the last token of its text and the drafts, and gives as many tokens.
void use_drafts(Speculation& speculation, SequenceSlice& step) {
  const auto rows = static_cast<size_t>(1 + step.drafts);
  speculation.input[0] = step.ids.back();
  step.ids = std::span(speculation.input).first(rows);
  step.chosen = speculation.chosen.data();
  step.top = std::span(speculation.top).first(rows * speculation.num_top);
}

// Asks for the weights of the rows of the prompt that the step has, from token `position` on.
void add_alignment(Job& job, int64_t position, SequenceSlice& step) {
  const int64_t rows = std::min(std::ssize(step.ids), job.prompt_tokens - position);
  if (rows <= 0) return;
  const int64_t source = job.alignment.source_tokens;
  step.alignment = {.heads = job.sampling.alignment_heads,
                    .rows = rows,
                    .source_tokens = source,
                    .out = job.alignment.values.data() + position * source,
                    .row_stride = job.prompt_tokens};
}

void build(const PlannedStep::Part& part, SequenceSlice& step) {
  Sequence& sequence = *part.sequence;
  Job& job = *sequence.job;
  const auto position = static_cast<size_t>(sequence.computed);
  const auto count = static_cast<size_t>(part.count - part.drafts);
  const std::span<const int32_t> tokens = sequence.tokens;
  const int64_t size = sequence.size() + sequence.pending;
  // Pointers of the step that was here before go, and all else that is read is set: clearing the
  // whole first would take longer than that.
  step.sampler.sampling = nullptr;
  step.sampler.history = {};
  step.sampler.mask = {};
  step.chosen = nullptr;
  step.top = {};
  step.targets = {};
  step.target_logprobs = {};
  step.target_top = {};
  step.target_mask = {};
  step.alignment = {};
  step.pending = sequence.pending > 0;
  step.drafts = part.drafts;
  // A pending token is the only one of its sequence.
  step.ids = step.pending ? std::span(&kPendingId, 1) : tokens.subspan(position, count);
  step.position = sequence.computed;
  step.adapter = job.adapter_slot();
  step.sample = step.kv_len() == size && job.wants_new_tokens();
  if (step.sample) {
    step.sampler = {.sampling = &job.sampling,
                    .rules = job.rules ? &*job.rules : nullptr,
                    .seed = job.seed,
                    .stream = sequence.index,
                    .num_new_tokens = size - job.prompt_tokens,
                    .history = tokens,
                    .prompt_tokens = job.prompt_tokens,
                    .slot = sequence.slot,
                    .restart = sequence.restart,
                    .mask = {}};
    if (sequence.masked) step.sampler.mask = sequence.mask_words;
    step.chosen = &sequence.chosen;
    step.top = sequence.top;
    if (step.drafts > 0) use_drafts(*sequence.speculation, step);
  }
  step.pages = std::span(sequence.pages).first(static_cast<size_t>(pages_of(step.kv_len())));
  step.source_pages = job.source_pages;
  step.source_tokens = std::ssize(job.source);
  if (sequence.index > 0) return;
  if (job.must_align()) add_alignment(job, sequence.computed, step);
  if (!job.must_score()) return;
  // A step in flight may have what is left of them.
  if (sequence.computed >= job.prompt_tokens - 1) return;
  const auto rows = static_cast<size_t>(job.prompt_tokens - 1) - position;
  const auto num_top = static_cast<size_t>(*job.sampling.prompt_logprobs);
  step.targets = tokens.subspan(position + 1, std::min(count, rows));
  step.target_logprobs =
      std::span(job.prompt_logprobs.logprobs).subspan(position, step.targets.size());
  if (job.sampling.filtered_logprobs) step.target_mask = job.allowed_words;
  step.target_top =
      std::span(job.prompt_logprobs.top).subspan(position * num_top, step.targets.size() * num_top);
}

// Updates `step`, which was built before for this plain sequence, to the sequence's next token.
void build_next(const Sequence& sequence, SequenceSlice& step) {
  const std::span<const int32_t> tokens = sequence.tokens;
  step.pending = sequence.pending > 0;
  step.position = sequence.computed;
  step.ids = step.pending ? std::span(&kPendingId, 1) : tokens.last(1);
  step.pages = std::span(sequence.pages).first(static_cast<size_t>(pages_of(step.kv_len())));
  step.sampler.history = tokens;
  step.sampler.num_new_tokens = sequence.size() + sequence.pending - sequence.job->prompt_tokens;
  step.sampler.restart = sequence.restart;
}

}  // namespace

void PlannedStep::reserve(size_t num_sequences) {
  copies.reserve(num_sequences);
  parts.reserve(num_sequences);
  sequences.reserve(num_sequences);
  sources.reserve(num_sequences);
  epochs.reserve(num_sequences);
}

void PlannedStep::launch() {
  sources.clear();
  sequences.resize(parts.size());
  epochs.resize(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    Part& part = parts[i];
    Sequence& sequence = *part.sequence;
    SequenceSlice& step = sequences[i];
    part.epoch = sequence.epoch;
    const bool known = std::exchange(epochs[i], part.epoch) == part.epoch;
    if (known && sequence.plain && step.sample) {
      build_next(sequence, step);
    } else {
      build(part, step);
    }
    part.samples = step.sample;
    if (part.reads_source != 0) {
      const Job& job = *sequence.job;
      sources.push_back({.ids = job.source,
                         .pages = job.source_pages,
                         .features = {},
                         .adapter = job.adapter_slot()});
      if (job.features != nullptr) sources.back().features = job.features->values;
    }
    if (step.sample) sequence.restart = part.drafts > 0;  // several tokens may come
    if (part.drafts > 0) sequence.speculation->in_flight = true;
    sequence.computed += part.count - part.drafts;
    sequence.pending += step.sample ? 1 : 0;
    ++sequence.job->in_flight;
  }
}

}  // namespace packhorse
