#include "generation/scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "core/format.h"

namespace packhorse {
namespace {

using State = Sequence::State;

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

}  // namespace

Scheduler::Scheduler(const RunnerLimits& limits, const GenerationOptions& options,
                     int64_t draft_context)
    : limits_(limits),
      pages_(limits.num_pages, options.prefix_cache, draft_context),
      drafts_(pages_, draft_context) {
  const auto sequences = static_cast<size_t>(limits.max_sequences);
  constexpr int64_t kReserved = 1 << 16;  // more requests than these grow the list
  jobs_.reserve(static_cast<size_t>(std::min(options.max_queue, kReserved)) + sequences);
  free_slots_.reserve(sequences);
  for (auto slot = static_cast<int32_t>(sequences); slot > 0;) free_slots_.push_back(--slot);
  for (PlannedStep& plan : plans_) plan.reserve(sequences);
  unit_.reserve(sequences);
}

void Scheduler::add(std::unique_ptr<Job> job) {
  pages_.set_salt(*job);
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
    source_tokens_ = 0;
    budget_ = limits_.max_tokens;
    plan_decodes();
    if (may_have_drafts_) budget_ -= drafts_.plan(next, budget_);
    const bool others_wait = limits_.max_chunk > 0 && any_waits_for_token();
    held_back_ = others_wait ? std::max(int64_t{0}, budget_ - limits_.max_chunk) : 0;
    budget_ -= held_back_;
    plan_prefills();
    plan_starts();
  } while (next.parts.empty() && num_in_flight_ == 0 && preempt_youngest());
  next.num_tokens = 0;
  for (const PlannedStep::Part& part : next.parts) next.num_tokens += part.count;
  next.launch();
  if (!next.parts.empty()) ++num_in_flight_;
  return {next.copies, next.sequences, next.num_tokens, next.sources};
}

bool Scheduler::any_waits_for_token() const {
  return std::ranges::any_of(std::span(jobs_).first(num_started_), [](const auto& job) {
    return std::ranges::any_of(job->sequences, &Sequence::waits_for_token);
  });
}

void Scheduler::plan_decodes() {
  const bool may_draft = num_running_ < kMostDraftedRows;
  bool computes_prompts = false;
  bool may_have_drafts = false;
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
      may_have_drafts |= sequence.speculation != nullptr;
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
  may_have_drafts_ = may_have_drafts;
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
      const bool reading = jobs_[i]->reads_source;
      if (budget_ == 0 || !start(sequence)) return;
      num_started_ = std::max(num_started_, i + 1);
      const uint64_t read = jobs_[i]->reads_source ? jobs_[i]->source_epoch : 0;
      plan_tokens(sequence, std::min(sequence.remaining(), budget_));
      if (!reading) next_->parts.back().reads_source = read;
    }
  }
}

void Scheduler::plan_tokens(Sequence& sequence, int64_t count) {
  next_->parts.push_back({.sequence = &sequence, .count = count});
  budget_ -= count;
}

bool Scheduler::extend(std::span<Sequence* const> unit) {
  const auto runs = [](const Sequence* sequence) { return sequence->state == State::kRunning; };
  while (!pages_.extend(unit, next_->copies)) {
    preempt_youngest();
    if (!std::ranges::all_of(unit, runs)) return false;
  }
  return true;
}

// Sequences of one request begin when the first of them has computed the prompt, so that they find
// its pages.
bool Scheduler::is_held(const Sequence& sequence) const {
  const Job& job = *sequence.job;
  if (is_being_read(job)) return true;
  if (sequence.index == 0 || job.prompt_tokens < kPageTokens) return false;
  const Sequence& first = job.sequences[0];
  return first.state == State::kWaiting ||
         (first.state == State::kRunning && first.committed < job.prompt_tokens);
}

bool Scheduler::is_being_read(const Job& job) const {
  if (job.source.empty() || job.source_epoch != 0 || !pages_.shares_prefixes()) return false;
  return std::ranges::any_of(std::span(jobs_).first(num_started_), [&](const auto& other) {
    return other->reads_source && other->source == job.source &&
           other->sampling.cache_salt == job.sampling.cache_salt;
  });
}

bool Scheduler::start_source(Job& job, int64_t spare) {
  if (job.source.empty() || job.source_epoch != 0) return true;
  if (!pages_.start_source(job, spare)) return false;
  const auto tokens = std::ssize(job.source);
  // A source is read whole. The first of a step may have more tokens than the budget has left,
  // since the encoder has room of its own for them; so may windows of audio, each of which is more
  // than a budget.
  const bool fits = source_tokens_ == 0 || tokens < budget_ || job.features != nullptr;
  if (!job.source_published && (!fits || source_tokens_ + tokens > limits_.max_tokens)) {
    pages_.release_source(job);
    return false;
  }
  job.source_epoch = ++last_epoch_;
  job.reads_source = !job.source_published;
  return true;
}

void Scheduler::give_back_source(Job& job) {
  pages_.release_source(job);
  job.source_epoch = 0;
  job.reads_source = false;
}

bool Scheduler::start(Sequence& sequence) {
  Job& job = *sequence.job;
  const bool takes_slot = sequence.slot < 0;
  // Beams take their slots together: they run together.
  const size_t slots = !takes_slot ? 0 : job.search ? job.sequences.size() : 1;
  // Each sequence that runs will soon need a page more; beams of one request do not wait for it.
  const int64_t spare = job.search && sequence.index > 0 ? 0 : num_running_;
  if (free_slots_.size() < slots || !start_source(job, spare)) return false;
  if (!pages_.start(sequence, spare)) {
    if (job.num_running == 0) give_back_source(job);
    return false;
  }
  stats_.prefix_hit_tokens += sequence.computed;
  if (job.num_running == 0) {
    const auto tokens = std::ssize(job.source);
    (job.reads_source ? stats_.computed_tokens : stats_.prefix_hit_tokens) += tokens;
    if (job.reads_source) {
      source_tokens_ += tokens;
      if (job.features == nullptr) budget_ = std::max<int64_t>(1, budget_ - tokens);
    }
  }
  if (sequence.index == 0 && !job.started) {
    job.request->set_cached_prompt_tokens(std::min(sequence.computed, job.prompt_tokens));
  }
  for (Sequence& other : job.sequences) {
    if (!takes_slot || (!job.search && &other != &sequence)) continue;
    other.slot = free_slots_.back();
    free_slots_.pop_back();
  }
  sequence.state = State::kRunning;
  sequence.epoch = ++last_epoch_;
  sequence.restart = true;
  sequence.offered = false;
  --num_waiting_;
  ++num_running_;
  ++job.num_running;
  job.started = true;
  return true;
}

bool Scheduler::preempt_youngest() {
  for (size_t i = num_started_; i > 0; --i) {
    Job& job = *jobs_[i - 1];
    const auto runs = [](const Sequence& sequence) { return sequence.state == State::kRunning; };
    const auto last = std::find_if(job.sequences.rbegin(), job.sequences.rend(), runs);
    if (last == job.sequences.rend()) continue;
    ++stats_.preemptions;
    // Beams go on together, so that none keeps pages while another waits.
    for (Sequence& sequence : job.sequences) {
      if (!job.search && &sequence != &*last) continue;
      give_back(sequence);
      if (sequence.state != State::kRunning) continue;
      sequence.state = State::kWaiting;
      ++num_waiting_;
    }
    return true;
  }
  return false;
}

void Scheduler::give_back(Sequence& sequence) {
  const bool ran = sequence.state == State::kRunning;
  if (ran) --num_running_;
  if (sequence.slot >= 0) free_slots_.push_back(sequence.slot);
  sequence.slot = -1;
  pages_.release(sequence);
  if (ran && --sequence.job->num_running == 0) give_back_source(*sequence.job);
  sequence.pending = 0;
  sequence.epoch = ++last_epoch_;
  if (sequence.speculation != nullptr) sequence.speculation->in_flight = false;
}

const PlannedStep& Scheduler::commit() {
  const PlannedStep& plan = take_oldest();
  ++stats_.steps;
  stats_.computed_tokens += plan.num_tokens;
  for (const PlannedStep::Part& part : plan.parts) {
    Sequence& sequence = *part.sequence;
    Job& job = *sequence.job;
    --job.in_flight;
    if (part.reads_source != 0 && part.reads_source == job.source_epoch) {
      job.reads_source = false;
      pages_.publish_source(job);
    }
    if (!part.live()) continue;
    sequence.committed += part.count - part.drafts;
    if (part.samples) {
      --sequence.pending;
      ++stats_.new_tokens;
    }
    if ((sequence.published + 1) * kPageTokens <= sequence.committed) pages_.publish(sequence);
    if (sequence.plain) continue;
    stats_.drafted_tokens += part.drafts;
    if (part.drafts > 0) sequence.speculation->in_flight = false;
    if (sequence.index == 0 && job.must_score()) {
      job.scored = std::max(job.scored, std::min(sequence.committed, job.prompt_tokens - 1));
    }
    if (sequence.index == 0 && job.must_align()) {
      job.aligned = std::max(job.aligned, std::min(sequence.committed, job.prompt_tokens));
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

void Scheduler::accept(Sequence& sequence) {
  ++stats_.new_tokens;
  ++stats_.accepted_tokens;
  drafts_.accept(sequence);
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

void Scheduler::fork(Job& job) {
  const std::span<const NextBeam> next = job.search->next();
  // First of all, since a mask may throw when it is forked: nothing has changed hands then.
  for (size_t i = 0; i < next.size(); ++i) {
    const TokenMask* const mask = job.sequences[static_cast<size_t>(next[i].parent)].mask.get();
    job.spare[i].mask = mask == nullptr ? nullptr : mask->fork();
  }
  for (size_t i = 0; i < next.size(); ++i) {
    const Sequence& from = job.sequences[static_cast<size_t>(next[i].parent)];
    Sequence& to = job.spare[i];
    to.index = i;
    to.tokens.assign(from.tokens.begin(), from.tokens.end());
    to.tokens.push_back(next[i].token.id);
    to.logprobs.assign(from.logprobs.begin(), from.logprobs.end());
    to.logprobs.push_back(next[i].token.logprob);
    pages_.share(from, to);
    to.state = State::kRunning;
    to.restart = true;
    to.offered = false;
    to.dropped = from.dropped;
    to.slot = job.sequences[i].slot;
  }
  num_running_ += static_cast<int64_t>(next.size());
  job.num_running += static_cast<int64_t>(next.size());
  for (size_t i = 0; i < job.sequences.size(); ++i) {
    const int32_t slot = std::exchange(job.sequences[i].slot, -1);
    give_back(job.sequences[i]);
    if (i < next.size()) continue;
    // Fewer beams than asked for, because the vocabulary is that small.
    job.spare[i].index = i;
    job.spare[i].state = State::kNotStarted;
    job.spare[i].slot = slot;
  }
  std::swap(job.sequences, job.spare);
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
  const PagePool& pool = pages_.pool();
  stats.pages = pool.size();
  stats.pages_used = pool.num_used();
  stats.pages_cached = pool.num_cached();
  stats.pages_free = pool.num_free();
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
    tables.emplace_back(job->source_pages);
  }
  pages_.pool().check(tables);
  const auto check_count = [](const char* what, int64_t found, int64_t counted) {
    if (found != counted) throw RuntimeError(concat(found, " ", what, ", counted as ", counted));
  };
  check_count("sequences wait", waiting, num_waiting_);
  check_count("sequences run", running, num_running_);
  check_count("jobs are finished", finished, num_finished_);
}

}  // namespace packhorse
