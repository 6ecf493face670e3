#include "generation/speculation/drafting.h"

#include <algorithm>

#include "core/format.h"

namespace packhorse {
namespace {

// A choice that depends on what was chosen before it, by other than the model, is not drafted.
bool may_draft(const Job& job) {
  const Sampling& sampling = job.sampling;
  if (job.rules && job.rules->read_tokens()) return false;
  return sampling.num_beams == 1 && sampling.mask == nullptr && sampling.repetition_penalty == 1 &&
         sampling.presence_penalty == 0 && sampling.frequency_penalty == 0;
}

}  // namespace

int64_t most_drafts(const GenerationOptions& options) {
  return std::min(options.draft_tokens * options.max_sequences, kMostDraftedRows);
}

void add_speculation(Job& job, const GenerationOptions& options) {
  const Sampling& sampling = job.sampling;
  const int64_t most = sampling.draft_tokens.value_or(options.draft_tokens);
  if (most < 0 || most > options.draft_tokens) {
    throw InvalidArgument(concat("draft_tokens is ", most, ", expected 0 to ", options.draft_tokens,
                                 ": the session was loaded with draft_tokens ",
                                 options.draft_tokens));
  }
  if (most == 0 || !may_draft(job)) return;
  const auto num_top = static_cast<size_t>(sampling.logprobs.value_or(0));
  const bool by_model = options.draft_model.has_value();
  for (Sequence& sequence : job.sequences) {
    sequence.speculation = std::make_unique<Speculation>(most, num_top, !by_model, job.max_size);
    if (!by_model) sequence.speculation->ngrams->update(sequence.tokens);
  }
  if (!by_model) return;
  job.drafts_by_model = true;
  job.draft_sampling = sampling;
  job.draft_sampling.logprobs.reset();
}

ModelDrafter::ModelDrafter(StepRunner& runner) : runner_(runner), limits_(runner.limits()) {
  const auto sequences = static_cast<size_t>(limits_.max_sequences);
  step_.reserve(sequences);
  drafts_.reserve(sequences);
  chosen_.resize(sequences);
}

void ModelDrafter::run(const PlannedStep& plan) {
  step_.clear();  // where a step has failed
  drafts_.clear();
  num_tokens_ = 0;
  catch_up(plan);
  int64_t most = 0;
  for (const PlannedStep::Part& part : plan.parts) most = std::max(most, part.drafts);
  for (int64_t number = 2; number <= most; ++number) draft_next(plan, number);
}

void ModelDrafter::catch_up(const PlannedStep& plan) {
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    const PlannedStep::Part& part = plan.parts[i];
    Sequence& sequence = *part.sequence;
    if (sequence.speculation == nullptr) continue;
    Speculation& speculation = *sequence.speculation;
    const int64_t tokens = part.count - part.drafts;
    // A pending token is not known.
    const int64_t known = std::min(plan.sequences[i].position + tokens, sequence.size());
    const int64_t end = std::min(known, limits_.max_context);
    // Single tokens without drafts may wait, as long as no page is published or context filled.
    const bool may_wait = part.drafts == 0 && tokens == 1 && end < limits_.max_context &&
                          end - speculation.computed < kPageTokens;
    if (may_wait) continue;
    while (speculation.computed < end) {
      if (num_tokens_ == limits_.max_tokens) run();
      const int64_t begin = speculation.computed;
      const int64_t count = std::min(end - begin, limits_.max_tokens - num_tokens_);
      speculation.computed += count;
      const bool drafts = part.drafts > 0 && speculation.computed == end;
      add(sequence, std::span(sequence.tokens).subspan(size_t(begin), size_t(count)), begin,
          drafts ? 1 : 0);
    }
    speculation.ahead = std::max<int64_t>(0, part.drafts - 1);
  }
  run();
}

void ModelDrafter::draft_next(const PlannedStep& plan, int64_t number) {
  for (const PlannedStep::Part& part : plan.parts) {
    if (part.drafts < number) continue;
    const Speculation& speculation = *part.sequence->speculation;
    const std::span<const int32_t> input = speculation.input;
    add(*part.sequence, input.subspan(static_cast<size_t>(number - 1), 1),
        speculation.computed + number - 2, number);
  }
  run();
}

void ModelDrafter::add(Sequence& sequence, std::span<const int32_t> ids, int64_t position,
                       int64_t draft) {
  const Job& job = *sequence.job;
  SequenceSlice& added = step_.emplace_back();
  added.ids = ids;
  added.position = position;
  added.pages = std::span(sequence.pages).first(static_cast<size_t>(pages_of(added.kv_len())));
  added.sample = draft > 0;
  added.sampler = {.sampling = &job.draft_sampling,
                   .rules = job.rules ? &*job.rules : nullptr,
                   .seed = job.seed,
                   .stream = sequence.index,
                   .num_new_tokens = sequence.size() - job.prompt_tokens + draft - 1,
                   .history = {},
                   .prompt_tokens = job.prompt_tokens,
                   .slot = sequence.slot,
                   .mask = {}};
  if (sequence.masked) added.sampler.mask = sequence.mask_words;  // allowed_ids
  const auto number = step_.size() - 1;
  added.chosen = &chosen_[number];
  int32_t* const drafted = &sequence.speculation->input[static_cast<size_t>(draft)];
  drafts_.push_back(draft > 0 ? drafted : nullptr);
  num_tokens_ += static_cast<int64_t>(ids.size());
}

void ModelDrafter::run() {
  if (step_.empty()) return;
  runner_.run({.copies = {}, .sequences = step_, .num_tokens = num_tokens_});
  for (size_t i = 0; i < drafts_.size(); ++i) {
    if (drafts_[i] != nullptr) *drafts_[i] = chosen_[i].id;
  }
  step_.clear();
  drafts_.clear();
  num_tokens_ = 0;
}

}  // namespace packhorse
