#include "generation/scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "core/format.h"

namespace packhorse {
namespace {

using State = Sequence::State;

constexpr uint64_t kDraftedSalt = uint64_t{1} << 62;

// The step's sequence has the last token of its text and the drafts, and gives as many tokens.
void use_drafts(Speculation& speculation, SequenceSlice& step) {
  const auto rows = static_cast<size_t>(1 + step.drafts);
  speculation.input[0] = step.ids.back();
  step.ids = std::span(speculation.input).first(rows);
  step.chosen = speculation.chosen.data();
  step.top = std::span(speculation.top).first(rows * speculation.num_top);
}

// True if what follows the sequence's next token cannot be computed before the host has the token.
// `may_draft`: sequences that draft may do so in the next step.
bool needs_host(const Sequence& sequence, bool may_draft) {
  const Speculation* const drafts = sequence.speculation.get();
  const Job& job = *sequence.job;
  return job.search.has_value() || sequence.mask != nullptr ||
         (job.rules && job.rules->read_tokens()) ||
         (drafts != nullptr && (drafts->in_flight || (may_draft && drafts->length.drafts())));
}

// True if the next step can have the sequence's last token, and no other one.
bool can_decode(const Sequence& sequence, bool may_draft) {
  return sequence.waits_for_token() &&
         (sequence.plain || sequence.pending == 0 || !needs_host(sequence, may_draft));
}

// True if the page that the next token goes to is there. A sequence without beams shares it with
// no other one.
bool has_place(const Sequence& sequence) {
  return sequence.computed < std::ssize(sequence.pages) * kPageTokens;
}

// Stands for a token that the host does not know yet.
constexpr int32_t kPendingId = 0;

}  // namespace

Scheduler::Scheduler(const RunnerLimits& limits, const GenerationOptions& options,
                     int64_t draft_context)
    : limits_(limits),
      shares_prefixes_(options.prefix_cache),
      draft_context_(draft_context),
      pool_(limits.num_pages, options.prefix_cache) {
  const auto sequences = static_cast<size_t>(limits.max_sequences);
  constexpr int64_t kReserved = 1 << 16;  // more requests than these grow the list
  jobs_.reserve(static_cast<size_t>(std::min(options.max_queue, kReserved)) + sequences);
  free_slots_.reserve(sequences);
  for (auto slot = static_cast<int32_t>(sequences); slot > 0;) free_slots_.push_back(--slot);
  for (PlannedStep& plan : plans_) {
    plan.copies.reserve(sequences);
    plan.parts.reserve(sequences);
    plan.sequences.reserve(sequences);
    plan.epochs.reserve(sequences);
  }
  unit_.reserve(sequences);
}

void Scheduler::add(std::unique_ptr<Job> job) {
  // Sequences of one request alone share pages where there is no prefix cache.
  const uint64_t adapter = job->adapter == nullptr ? 0 : job->adapter->salt;
  const uint64_t shared = static_cast<uint64_t>(job->sampling.cache_salt) << 32 | adapter;
  job->salt = shares_prefixes_ ? shared : next_salt_++;
  // Pages in which a draft model's keys and values lie, too, are of another kind.
  if (job->drafts_by_model) job->salt |= kDraftedSalt;
  num_waiting_ += std::ranges::count(job->sequences, State::kWaiting, &Sequence::state);
  jobs_.push_back(std::move(job));
}

Step Scheduler::plan() {
  next_ = &in_flight(num_in_flight_);
  PlannedStep& next = *next_;
  // Beams that wait for another beam of theirs, which finds no page, may keep all pages: the
  // youngest then gives way.
  do {
    next.copies.clear();
    next.parts.clear();
    budget_ = limits_.max_tokens;
    plan_decodes();
    plan_drafts();
    const bool others_wait = limits_.max_chunk > 0 && any_waits_for_token();
    held_back_ = others_wait ? std::max(int64_t{0}, budget_ - limits_.max_chunk) : 0;
    budget_ -= held_back_;
    plan_prefills();
    plan_starts();
  } while (next.parts.empty() && num_in_flight_ == 0 && preempt_youngest());
  next.num_tokens = limits_.max_tokens - held_back_ - budget_;
  next.sequences.resize(next.parts.size());
  next.epochs.resize(next.parts.size());
  for (size_t i = 0; i < next.parts.size(); ++i) {
    PlannedStep::Part& part = next.parts[i];
    Sequence& sequence = *part.sequence;
    SequenceSlice& step = next.sequences[i];
    part.epoch = sequence.epoch;
    const bool known = std::exchange(next.epochs[i], part.epoch) == part.epoch;
    if (known && sequence.plain && step.sample) {
      build_next(sequence, step);
    } else {
      build(part, step);
    }
    part.samples = step.sample;
    if (step.sample) sequence.restart = part.drafts > 0;  // several tokens may come
    if (part.drafts > 0) sequence.speculation->in_flight = true;
    sequence.computed += part.count - part.drafts;
    sequence.pending += step.sample ? 1 : 0;
    ++sequence.job->in_flight;
  }
  if (!next.parts.empty()) ++num_in_flight_;
  return {next.copies, next.sequences, next.num_tokens};
}

bool Scheduler::any_waits_for_token() const {
  return std::ranges::any_of(std::span(jobs_).first(num_started_), [](const auto& job) {
    return std::ranges::any_of(job->sequences, &Sequence::waits_for_token);
  });
}

void Scheduler::plan_decodes() {
  const bool may_draft = num_running_ < kMostDraftedRows;
  bool computes_prompts = false;
  bool drafts = false;
  unit_.clear();
  for (size_t i = 0; i < num_started_; ++i) {
    Job& job = *jobs_[i];
    for (Sequence& sequence : job.sequences) {
      if (sequence.state != State::kRunning) continue;
      computes_prompts |= sequence.remaining() > 1;
      if (!can_decode(sequence, may_draft)) continue;
      if (sequence.plain && has_place(sequence)) {
        plan_tokens(sequence, 1);
        continue;
      }
      drafts |= sequence.speculation != nullptr;
      if (job.search) {  // beams go on together
        unit_.push_back(&sequence);
      } else if (Sequence* const alone = &sequence; extend({&alone, 1})) {
        plan_tokens(sequence, 1);
      }
    }
    if (unit_.empty()) continue;
    if (extend(unit_)) {
      for (Sequence* beam : unit_) plan_tokens(*beam, 1);
    }
    unit_.clear();
  }
  computes_prompts_ = computes_prompts;
  drafts_ = drafts;
}

void Scheduler::plan_prefills() {
  if (!computes_prompts_) return;
  for (size_t i = 0; i < num_started_; ++i) {
    for (Sequence& sequence : jobs_[i]->sequences) {
      if (sequence.state != State::kRunning || sequence.remaining() <= 1) continue;
      if (budget_ == 0) return;
      plan_tokens(sequence, std::min(sequence.remaining(), budget_));
    }
  }
}

void Scheduler::plan_starts() {
  if (num_waiting_ == 0) return;
  for (size_t i = 0; i < jobs_.size(); ++i) {
    for (Sequence& sequence : jobs_[i]->sequences) {
      if (sequence.state != State::kWaiting || is_held(sequence)) continue;
      if (budget_ == 0 || !start(sequence)) return;
      num_started_ = std::max(num_started_, i + 1);
      plan_tokens(sequence, std::min(sequence.remaining(), budget_));
    }
  }
}

void Scheduler::plan_tokens(Sequence& sequence, int64_t count) {
  next_->parts.push_back({.sequence = &sequence, .count = count});
  budget_ -= count;
}

void Scheduler::build(const PlannedStep::Part& part, SequenceSlice& step) const {
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
  if (sequence.index > 0 || !job.must_score()) return;
  // A step in flight may have what is left of them.
  if (sequence.computed >= job.prompt_tokens - 1) return;
  const auto rows = static_cast<size_t>(job.prompt_tokens - 1) - position;
  const auto num_top = static_cast<size_t>(*job.sampling.prompt_logprobs);
  step.targets = tokens.subspan(position + 1, std::min(count, rows));
  step.target_logprobs =
      std::span(job.prompt_logprobs.logprobs).subspan(position, step.targets.size());
  step.target_top =
      std::span(job.prompt_logprobs.top).subspan(position * num_top, step.targets.size() * num_top);
}

void Scheduler::build_next(const Sequence& sequence, SequenceSlice& step) {
  const std::span<const int32_t> tokens = sequence.tokens;
  step.pending = sequence.pending > 0;
  step.position = sequence.computed;
  step.ids = step.pending ? std::span(&kPendingId, 1) : tokens.last(1);
  step.pages = std::span(sequence.pages).first(static_cast<size_t>(pages_of(step.kv_len())));
  step.sampler.history = tokens;
  step.sampler.num_new_tokens = sequence.size() + sequence.pending - sequence.job->prompt_tokens;
  step.sampler.restart = sequence.restart;
}

const PlannedStep& Scheduler::commit() {
  const PlannedStep& plan = take_oldest();
  ++stats_.steps;
  stats_.computed_tokens += plan.num_tokens;
  for (const PlannedStep::Part& part : plan.parts) {
    Sequence& sequence = *part.sequence;
    Job& job = *sequence.job;
    --job.in_flight;
    if (!part.live()) continue;
    sequence.committed += part.count - part.drafts;
    if (part.samples) {
      --sequence.pending;
      ++stats_.new_tokens;
    }
    if ((sequence.published + 1) * kPageTokens <= sequence.committed) publish(sequence);
    if (sequence.plain) continue;
    stats_.drafted_tokens += part.drafts;
    if (part.drafts > 0) sequence.speculation->in_flight = false;
    if (sequence.index == 0 && job.must_score()) {
      job.scored = std::max(job.scored, std::min(sequence.committed, job.prompt_tokens - 1));
    }
  }
  return plan;
}

PlannedStep& Scheduler::take_oldest() {
  PlannedStep& plan = in_flight(0);
  oldest_ = (oldest_ + 1) % plans_.size();
  --num_in_flight_;
  return plan;
}

const PlannedStep& Scheduler::drop_oldest() {
  const PlannedStep& plan = take_oldest();
  commit(plan);
  return plan;
}

const PlannedStep& Scheduler::drop_newest() {
  const PlannedStep& plan = in_flight(--num_in_flight_);
  commit(plan);
  return plan;
}

void Scheduler::commit(const PlannedStep& plan) {
  for (const PlannedStep::Part& part : plan.parts) --part.sequence->job->in_flight;
}

void Scheduler::finish(Sequence& sequence) {
  if (sequence.state == State::kFinished) return;
  give_back(sequence);
  if (sequence.state == State::kWaiting) --num_waiting_;
  sequence.state = State::kFinished;
  if (!sequence.job->finished()) return;
  ++num_finished_;
  ++stats_.finished_requests;
  sequence.job->adapter.reset();
}

void Scheduler::remove_finished() {
  if (num_finished_ == 0) return;
  // Results of steps in flight still go to where the job has room for them.
  const auto finished = [](const std::unique_ptr<Job>& job) {
    return job->finished() && job->in_flight == 0;
  };
  const auto started = jobs_.begin() + static_cast<ptrdiff_t>(num_started_);
  num_started_ -= static_cast<size_t>(std::count_if(jobs_.begin(), started, finished));
  num_finished_ -= static_cast<int64_t>(std::erase_if(jobs_, finished));
}

GenerationStats Scheduler::stats() const {
  GenerationStats stats = stats_;
  stats.running = num_running_;
  stats.queued = num_waiting_;
  stats.pages = pool_.size();
  stats.pages_used = pool_.num_used();
  stats.pages_cached = pool_.num_cached();
  stats.pages_free = pool_.num_free();
  return stats;
}

void Scheduler::check() const {
  std::vector<std::span<const int32_t>> tables;
  int64_t waiting = 0;
  int64_t running = 0;
  int64_t finished = 0;
  for (const auto& job : jobs_) {
    waiting += std::ranges::count(job->sequences, State::kWaiting, &Sequence::state);
    running += std::ranges::count(job->sequences, State::kRunning, &Sequence::state);
    finished += job->finished() ? 1 : 0;
    for (const Sequence& sequence : job->sequences) tables.emplace_back(sequence.pages);
  }
  pool_.check(tables);
  const auto check_count = [](const char* what, int64_t found, int64_t counted) {
    if (found != counted) throw RuntimeError(concat(found, " ", what, ", counted as ", counted));
  };
  check_count("sequences wait", waiting, num_waiting_);
  check_count("sequences run", running, num_running_);
  check_count("jobs are finished", finished, num_finished_);
}

}  // namespace packhorse
