#include "generation/engine/engine.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <limits>
#include <utility>

#include "core/format.h"
#include "generation/sampling/masks.h"

namespace packhorse {
namespace {

using State = Sequence::State;

int64_t draft_context(StepRunner& runner) {
  StepRunner* const draft = runner.draft();
  return draft == nullptr ? std::numeric_limits<int64_t>::max() : draft->limits().max_context;
}

// The engine whose thread this is, or null.
thread_local const Engine* running_engine = nullptr;

// Engines whose threads destroy them. A process that ends waits for them, before it destroys what
// they use. It counts those of this process alone: fork() copies no thread.
class Remaining {
 public:
  static Remaining& all() {
    static Remaining remaining;
    return remaining;
  }
  ~Remaining() {
    if (process_ != getpid()) return;
    while (const int count = count_) count_.wait(count);
  }
  void add() {
    if (process_.exchange(getpid()) != getpid()) count_ = 0;
    ++count_;
  }
  void remove() {
    --count_;
    count_.notify_all();
  }

 private:
  std::atomic<pid_t> process_ = getpid();
  std::atomic<int> count_ = 0;
};

// Calls `body`; what it throws, which `what` has thrown, is returned as text. Nothing may be thrown
// in the engine's thread, not even for want of memory for that text.
template <class Body>
std::string attempt(const char* what, const Body& body) noexcept {
  try {
    try {
      body();
    } catch (const std::exception& failure) {
      return concat(what, " failed: ", failure.what());
    } catch (...) {
      return concat(what, " failed for an unknown reason");
    }
  } catch (const std::exception&) {
    return kOutOfMemory;
  }
  return {};
}

}  // namespace

template <class Body>
void Engine::guard(Job& job, const Body& body) {
  const std::string error = attempt("the token mask", body);
  if (!error.empty()) end(job, FinishReason::kError, error);
}

template <class Wait>
void Engine::rest(const Wait& wait) {
  using Clock = std::chrono::steady_clock;
  host_s_ += std::chrono::duration<double>(Clock::now() - awake_).count();
  wait();
  awake_ = Clock::now();
}

Engine::Engine(StepRunner& runner, const GenerationOptions& options)
    : runner_(runner),
      limits_(runner.limits()),
      most_in_flight_(runner.overlaps() ? StepRunner::kMostInFlight : 1),
      max_queue_(options.max_queue),
      scheduler_(limits_, options, draft_context(runner)),
      stats_(scheduler_.stats()) {
  if (runner.draft() != nullptr) drafter_.emplace(*runner.draft());
  thread_ = std::thread([this] {
    running_engine = this;
    run();
    std::unique_lock lock(mutex_);
    Owner owner = std::move(owner_);
    lock.unlock();
    if (owner == nullptr) return;
    owner.reset();  // with this engine
    Remaining::all().remove();
  });
}

Engine::~Engine() {
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
    return;
  }
  stop({nullptr, nullptr});
  thread_.join();
}

void Engine::destroy(Owner owner, Engine& engine) {
  if (running_engine == nullptr) return owner.reset();
  Remaining::all().add();
  engine.stop(std::move(owner));
}

void Engine::stop(Owner owner) {
  // The thread may destroy this engine as soon as the lock is free.
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  owner_ = std::move(owner);
  submitted_.notify_all();
  room_.notify_all();
}

void Engine::check_caller(const char* what) const {
  if (running_engine != this) return;
  throw RuntimeError(concat(what,
                            " was called by a token mask or a listener of this session, which ",
                            "would wait for itself"));
}

void Engine::submit(std::span<std::unique_ptr<Job>> jobs, double timeout_s) {
  std::unique_lock lock(mutex_);
  const auto has_place = [&] {
    return stopping_ || num_unstarted_ + static_cast<int64_t>(inbox_.size()) < max_queue_;
  };
  for (std::unique_ptr<Job>& job : jobs) {
    if (!has_place()) {
      check_caller("submit, while the queue is full,");
      submitted_.notify_one();  // the engine's thread makes place
    }
    if (!room_.wait_until(lock, after(timeout_s), has_place)) {
      throw RuntimeError(concat("the queue is full: max_queue = ", max_queue_,
                                " requests wait, and none was started within ", timeout_s,
                                " seconds; submit it later, or with a longer timeout"));
    }
    if (stopping_) throw RuntimeError("the session is being destroyed");
    job->request->set_engine_thread(thread_.get_id());
    inbox_.push_back(std::move(job));
  }
  lock.unlock();
  submitted_.notify_one();
}

void Engine::between_steps(std::function<void()> work) {
  check_caller("add_adapter");
  std::packaged_task<void()> task(std::move(work));
  std::future<void> done = task.get_future();
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) throw RuntimeError("the session is being destroyed");
    tasks_.push_back(std::move(task));
  }
  submitted_.notify_one();
  try {
    done.get();
  } catch (const std::future_error&) {  // nobody will do it
    throw RuntimeError("the session is being destroyed");
  }
}

GenerationStats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  GenerationStats stats = stats_;
  for (const auto& job : inbox_) stats.queued += static_cast<int64_t>(job->sampling.n);
  return stats;
}

void Engine::run() {
  while (take_submitted()) {
    end_overdue();
    launch_steps();
    collect_step();
    count();  // before callers hear of it
    notify_callers();
    scheduler_.remove_finished();
  }
  while (scheduler_.num_in_flight() > 0) collect_step();
  for (const auto& job : scheduler_.jobs()) end(*job, FinishReason::kCancelled);
  notify_callers();
}

void Engine::count() {
  const std::lock_guard lock(mutex_);
  stats_ = scheduler_.stats();
  stats_.host_s = host_s_;
  num_unstarted_ = scheduler_.num_unstarted();
  room_.notify_all();
}

bool Engine::take_submitted() {
  size_t num_fresh = 0;
  std::vector<std::packaged_task<void()>> tasks;
  {
    std::unique_lock lock(mutex_);
    num_unstarted_ = scheduler_.num_unstarted();
    room_.notify_all();
    if (scheduler_.jobs().empty()) {
      const auto is_woken = [&] { return stopping_ || !inbox_.empty() || !tasks_.empty(); };
      rest([&] { submitted_.wait(lock, is_woken); });
    }
    num_fresh = inbox_.size();
    for (auto& job : inbox_) scheduler_.add(std::move(job));
    inbox_.clear();
    tasks.swap(tasks_);
    num_unstarted_ = scheduler_.num_unstarted();
    if (stopping_) return false;  // who waits for an task hears that it is gone
  }
  while (!tasks.empty() && scheduler_.num_in_flight() > 0) collect_step();
  for (auto& task : tasks) task();
  if (num_fresh > 0) next_deadline_ = {};  // theirs are not known
  for (const auto& job : scheduler_.jobs().last(num_fresh)) {
    guard(*job, [&] {
      for (Sequence& sequence : job->sequences) {
        if (prepare_mask(sequence, limits_.vocab_size)) continue;
        return end(*job, FinishReason::kStop);
      }
    });
  }
  return true;
}

void Engine::end_overdue() {
  const auto now = std::chrono::steady_clock::now();
  const uint64_t cancellations = Request::num_cancellations();
  if (cancellations == cancellations_ && now < next_deadline_) return;
  cancellations_ = cancellations;
  next_deadline_ = std::chrono::steady_clock::time_point::max();
  for (const auto& job : scheduler_.jobs()) {
    if (job->request->cancelled()) {
      end(*job, FinishReason::kCancelled);
    } else if (job->deadline <= now) {
      end(*job, FinishReason::kDeadline);
    } else {
      next_deadline_ = std::min(next_deadline_, job->deadline);
    }
  }
}

void Engine::launch_steps() {
  while (scheduler_.num_in_flight() < most_in_flight_ && launch_step()) {
  }
}

bool Engine::launch_step() {
  const Step step = scheduler_.plan();
  count();  // what has begun makes room in the queue
  if (step.sequences.empty()) return false;
  const std::string error = attempt("a step", [&] {
    if (drafter_) drafter_->run(scheduler_.newest());
    runner_.launch(step);
  });
  if (!error.empty()) fail(scheduler_.drop_newest(), error);
  return error.empty();
}

void Engine::collect_step() {
  if (scheduler_.num_in_flight() == 0) return;
  const std::string error = attempt("a step", [&] { rest([&] { runner_.wait(); }); });
  if (error.empty()) return collect(scheduler_.commit());
  while (scheduler_.num_in_flight() > 0) fail(scheduler_.drop_oldest(), error);
}

void Engine::fail(const PlannedStep& plan, const std::string& error) {
  for (const PlannedStep::Part& part : plan.parts) {
    if (part.live()) end(*part.sequence->job, FinishReason::kError, error);
  }
}

void Engine::collect(const PlannedStep& plan) {
  bool searches = false;
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    const PlannedStep::Part& part = plan.parts[i];
    if (!part.live()) continue;
    Sequence& sequence = *part.sequence;
    if (sequence.plain && part.samples) {
      take_token(sequence);
      continue;
    }
    const SequenceSlice& step = plan.sequences[i];
    Job& job = *sequence.job;
    searches |= job.search.has_value();
    if (sequence.index == 0 && !step.targets.empty() && !job.must_score()) {
      job.request->set_prompt_logprobs(std::move(job.prompt_logprobs));
    }
    if (step.alignment.rows > 0 && !job.must_align()) {
      job.request->set_alignment(std::move(job.alignment));
    }
    if (step.sample) {
      sequence.offered = true;
      if (!job.search) {
        guard(job, [&] {
          step.drafts > 0 ? take_drafted(sequence, step.drafts) : take_token(sequence);
        });
      }
    } else if (sequence.committed == sequence.size()) {  // no new tokens are wanted
      finish(sequence, FinishReason::kLength);
    }
  }
  if (!searches) return;
  for (const auto& job : scheduler_.jobs()) {
    if (!job->search || !job->started) continue;
    const auto waits = [](const Sequence& beam) {
      return beam.state != State::kNotStarted && !(beam.state == State::kRunning && beam.offered);
    };
    if (std::ranges::any_of(job->sequences, waits)) continue;
    guard(*job, [&] { advance_beams(*job); });
  }
}

void Engine::take_token(Sequence& sequence) {
  Job& job = *sequence.job;
  const int32_t token = sequence.chosen.id;
  if (token < 0) return finish(sequence, FinishReason::kStop);  // none may follow
  sequence.tokens.push_back(token);
  job.request->append(sequence.index, sequence.chosen, sequence.top);
  job.changed = true;
  if (!job.stop_ids.empty() && std::ranges::binary_search(job.stop_ids, token)) {
    return finish(sequence, FinishReason::kStop);
  }
  if (sequence.size() >= job.max_size) return finish(sequence, FinishReason::kLength);
  if (sequence.plain) return;
  if (sequence.mask != nullptr) sequence.mask->accept(token);
  if (!prepare_mask(sequence, limits_.vocab_size)) finish(sequence, FinishReason::kStop);
}

void Engine::take_drafted(Sequence& sequence, int64_t drafts) {
  const Speculation& speculation = *sequence.speculation;
  const std::span<const TokenLogprob> top = speculation.top;
  const size_t num_top = speculation.num_top;
  Request& request = *sequence.job->request;
  request.count_drafts(drafts, 0);
  for (int64_t accepted = 0;; ++accepted) {
    const auto row = static_cast<size_t>(accepted);
    sequence.chosen = speculation.chosen[row];
    std::ranges::copy(top.subspan(row * num_top, num_top), sequence.top.begin());
    take_token(sequence);
    if (sequence.state == State::kFinished) return;
    if (accepted == drafts || sequence.chosen.id != speculation.input[row + 1]) {
      return scheduler_.complete_drafts(sequence, drafts, accepted);
    }
    scheduler_.accept(sequence);
    request.count_drafts(0, 1);
  }
}

void Engine::advance_beams(Job& job) {
  std::vector<BeamOffer> offers;
  for (Sequence& beam : job.sequences) {
    if (beam.state == State::kNotStarted) continue;
    if (beam.dropped) drop_candidates(beam);
    offers.push_back({beam.top, beam.new_ids(), beam.logprobs});
  }
  if (!job.search->advance(offers)) {
    return finish_beams(job, job.search->finish(), FinishReason::kLength);
  }
  scheduler_.fork(job);
  for (const NextBeam& next : job.search->next()) {
    Sequence& beam = job.sequences[static_cast<size_t>(&next - job.search->next().data())];
    // A beam that its mask leads nowhere takes no part any more.
    beam.dropped = beam.dropped || next.token.logprob == -INFINITY;
    if (beam.dropped) continue;
    if (beam.mask != nullptr) beam.mask->accept(next.token.id);
    beam.dropped = !prepare_mask(beam, limits_.vocab_size);
  }
}

void Engine::end_beams(Job& job, FinishReason reason) {
  std::vector<BeamOffer> beams;
  for (const Sequence& beam : job.sequences) {
    if (beam.state == State::kNotStarted) continue;
    beams.push_back({{}, beam.new_ids(), beam.logprobs});
  }
  finish_beams(job, job.search->finish(beams, reason), reason);
}

void Engine::end(Job& job, FinishReason reason, const std::string& error) {
  if (job.finished()) return;
  if (job.search && job.started && reason != FinishReason::kError) {
    const std::string failed = attempt("the beam search", [&] { end_beams(job, reason); });
    return failed.empty() ? void() : end(job, FinishReason::kError, failed);
  }
  for (Sequence& sequence : job.sequences) scheduler_.finish(sequence);
  for (size_t i = 0; i < job.request->num_sequences(); ++i) job.request->finish(i, reason, error);
  job.changed = true;
}

// Gives back what a sequence holds before its caller can see that it has ended.
void Engine::finish(Sequence& sequence, FinishReason reason) {
  scheduler_.finish(sequence);
  sequence.job->request->finish(sequence.index, reason);
  sequence.job->changed = true;
}

void Engine::finish_beams(Job& job, std::vector<Hypothesis> hypotheses, FinishReason otherwise) {
  for (Sequence& beam : job.sequences) scheduler_.finish(beam);
  const size_t count = job.request->num_sequences();
  for (size_t i = 0; i < count && i < hypotheses.size(); ++i) {
    GeneratedSequence result;
    result.ids = std::move(hypotheses[i].ids);
    if (job.sampling.logprobs) result.logprobs = std::move(hypotheses[i].logprobs);
    result.score = hypotheses[i].score;
    result.finish_reason = hypotheses[i].reason;
    job.request->set(i, std::move(result));
  }
  for (size_t i = hypotheses.size(); i < count; ++i) job.request->finish(i, otherwise);
  job.changed = true;
}

void Engine::notify_callers() {
  Request::pass_turnstile();
  for (const auto& job : scheduler_.jobs()) {
    if (std::exchange(job->changed, false)) job->request->notify();
  }
}

}  // namespace packhorse
