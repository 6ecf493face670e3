// The scheduler's dealings with pages and slots: taken, shared, published, given back.
#include <algorithm>
#include <utility>

#include "generation/scheduler/scheduler.h"

namespace packhorse {
namespace {

using State = Sequence::State;

// The page that the next token goes to, or -1 where it is the first of a new one.
int32_t last_page(const Sequence& sequence) {
  const auto number = static_cast<size_t>(sequence.computed / kPageTokens);
  return number < sequence.pages.size() ? sequence.pages[number] : -1;
}

}  // namespace

int64_t Scheduler::pages_to_extend(std::span<Sequence* const> unit) const {
  int64_t count = 0;
  for (auto sequence = unit.begin(); sequence != unit.end(); ++sequence) {
    const int32_t page = last_page(**sequence);
    // All holders of a page that is not full are beams of the unit: the last of them keeps it.
    const bool keeps =
        page >= 0 && std::none_of(unit.begin(), sequence,
                                  [&](const Sequence* other) { return last_page(*other) == page; });
    count += keeps ? 0 : 1;
  }
  return count;
}

bool Scheduler::extend(std::span<Sequence* const> unit) {
  // As a rule a sequence has its next token's page, and alone.
  if (unit.size() == 1) {
    const int32_t page = last_page(*unit[0]);
    if (page >= 0 && pool_.holders(page) == 1) return true;
  }
  while (pool_.available() < pages_to_extend(unit)) {
    preempt_youngest();
    const auto runs = [](const Sequence* sequence) { return sequence->state == State::kRunning; };
    if (!std::ranges::all_of(unit, runs)) return false;
  }
  for (Sequence* sequence : unit) {
    const int32_t page = last_page(*sequence);
    if (page < 0) {
      sequence->pages.push_back(pool_.allocate());
    } else if (pool_.holders(page) > 1) {
      sequence->pages.back() = pool_.allocate();
      next_->copies.push_back({page, sequence->pages.back()});
      pool_.release(page);
    }
  }
  return true;
}

// Sequences of one request begin when the first of them has computed the prompt, so that they find
// its pages.
bool Scheduler::is_held(const Sequence& sequence) const {
  const Job& job = *sequence.job;
  if (sequence.index == 0 || job.prompt_tokens < kPageTokens) return false;
  const Sequence& first = job.sequences[0];
  return first.state == State::kWaiting ||
         (first.state == State::kRunning && first.committed < job.prompt_tokens);
}

bool Scheduler::start(Sequence& sequence) {
  Job& job = *sequence.job;
  const bool takes_slot = sequence.slot < 0;
  // Beams take their slots together: they run together.
  const size_t slots = !takes_slot ? 0 : job.search ? job.sequences.size() : 1;
  if (free_slots_.size() < slots || !take_prompt_pages(sequence)) return false;
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
  job.started = true;
  return true;
}

bool Scheduler::take_prompt_pages(Sequence& sequence) {
  const Job& job = *sequence.job;
  const std::span<const int32_t> tokens = sequence.tokens;
  // The last token is always computed: the next one comes from it. So are all whose
  // log-probabilities are wanted and have not come.
  int64_t most = sequence.size() - 1;
  if (sequence.index == 0 && job.must_score()) most = std::min(most, job.scored);
  PagePool::Block before = PagePool::root(job.salt);
  int64_t found = 0;
  for (; (found + 1) * kPageTokens <= most; ++found) {
    const int32_t page = pool_.find(
        before, tokens.subspan(static_cast<size_t>(found * kPageTokens), size_t(kPageTokens)));
    if (page < 0) break;
    sequence.pages.push_back(page);
    before = pool_.block(page);
  }
  // Each sequence that runs will soon need a page more; beams of one request do not wait for it.
  const bool beam = job.search && sequence.index > 0;
  const int64_t missing = pages_of(sequence.size()) - found;
  if (pool_.available() < missing + (beam ? 0 : num_running_)) {
    pool_.release_all(sequence.pages);
    return false;
  }
  for (int64_t i = 0; i < missing; ++i) sequence.pages.push_back(pool_.allocate());
  sequence.published = found;
  sequence.computed = sequence.committed = found * kPageTokens;
  if (sequence.speculation != nullptr) sequence.speculation->computed = sequence.computed;
  stats_.prefix_hit_tokens += sequence.computed;
  if (sequence.index == 0 && !job.started) {
    job.request->set_cached_prompt_tokens(std::min(sequence.computed, job.prompt_tokens));
  }
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
  if (sequence.state == State::kRunning) --num_running_;
  if (sequence.slot >= 0) free_slots_.push_back(sequence.slot);
  sequence.slot = -1;
  pool_.release_all(sequence.pages);
  sequence.published = 0;
  sequence.computed = sequence.committed = 0;
  sequence.pending = 0;
  sequence.epoch = ++last_epoch_;
  if (sequence.speculation != nullptr) sequence.speculation->in_flight = false;
}

void Scheduler::publish(Sequence& sequence) {
  const std::span<const int32_t> tokens = sequence.tokens;
  const int64_t tokens_of_all = publishable(sequence);
  for (; (sequence.published + 1) * kPageTokens <= tokens_of_all; ++sequence.published) {
    const auto number = static_cast<size_t>(sequence.published);
    const PagePool::Block before =
        number == 0 ? PagePool::root(sequence.job->salt) : pool_.block(sequence.pages[number - 1]);
    sequence.pages[number] =
        pool_.publish(sequence.pages[number], before,
                      tokens.subspan(number * size_t(kPageTokens), size_t(kPageTokens)));
  }
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
    to.pages.assign(from.pages.begin(), from.pages.end());
    for (const int32_t page : to.pages) pool_.retain(page);
    to.published = from.published;
    to.computed = from.computed;
    to.committed = from.committed;
    to.state = State::kRunning;
    to.restart = true;
    to.offered = false;
    to.dropped = from.dropped;
    to.slot = job.sequences[i].slot;
  }
  num_running_ += static_cast<int64_t>(next.size());
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

}  // namespace packhorse
