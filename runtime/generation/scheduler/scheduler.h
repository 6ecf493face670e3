// Decides which tokens the next step has, and who gives way where pages are missing.
//
// Requests are served in the order of their arrival. A step takes, within its budget of tokens,
//   1. a token of each sequence that waits for nothing else but its next token, and drafts of what
//      follows it, for which nothing else gives way;
//   2. pieces of prompts (or of what was preempted) that are being computed, the oldest first;
//      beside sequences of 1 at most RunnerLimits::max_chunk tokens of 2 and 3 together, so that
//      those sequences need not wait long for their next token;
//   3. sequences that begin: the oldest that waits, and no younger one before it, when all pages of
//      its prompt are there.
// Where 1 finds no page, the youngest sequence is preempted: its pages go back (those published may
// be found again), and it waits at its place in the order. So the oldest always goes on.
//
// A step can be planned while the step before it is still in flight. A sequence of that step whose
// next token is being chosen has this token, which is pending, in the new step, unless
//   - the host must see the token first, because a TokenMask or a beam search goes on from it, or
//   - the sequence surely ends with it.
// Such sequences sit out the new step, and the others do not wait for them. What a step computes
// for a sequence that has ended or was preempted since it was planned is thrown away when the step
// is collected: the sequence's epoch tells.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "generation/engine/job.h"
#include "generation/runner/step_runner.h"
#include "generation/scheduler/draft_planner.h"
#include "generation/scheduler/planned_step.h"
#include "generation/scheduler/sequence_pages.h"

namespace packhorse {

class Scheduler {
 public:
  /// `draft_context`: positions of the draft model, where there is one.
  Scheduler(const RunnerLimits& limits, const GenerationOptions& options,
            int64_t draft_context = std::numeric_limits<int64_t>::max());

  void add(std::unique_ptr<Job> job);
  /// In the order of arrival.
  std::span<const std::unique_ptr<Job>> jobs() const { return jobs_; }
  /// Jobs that no step has seen yet.
  int64_t num_unstarted() const { return static_cast<int64_t>(jobs_.size() - num_started_); }

  /// Decides the next step, which is in flight from now on if it has sequences. It has some where
  /// there is a job and no other step in flight. Fewer than StepRunner::kMostInFlight may be.
  Step plan();
  size_t num_in_flight() const { return num_in_flight_; }
  /// The step that was planned last, which is in flight.
  const PlannedStep& newest() const { return *next_; }
  /// The oldest step in flight was run: its tokens are cached, and full pages published. The result
  /// is valid until the next call of `plan`.
  const PlannedStep& commit();
  /// The newest or the oldest step in flight has failed. Its live sequences must be finished.
  const PlannedStep& drop_newest();
  const PlannedStep& drop_oldest();

  /// DraftPlanner::accept and DraftPlanner::complete.
  void accept(Sequence& sequence);
  void complete_drafts(Sequence& sequence, int64_t drafted, int64_t accepted) {
    drafts_.complete(sequence, drafted, accepted);
  }

  /// The sequence needs no more steps. Gives back what it holds.
  void finish(Sequence& sequence);
  /// Beams become those of job.search->next(): sequence i takes the place of beam i.
  void fork(Job& job);
  void remove_finished();

  /// Counts of sequences, pages and tokens.
  GenerationStats stats() const;
  /// PagePool::check with the tables of all sequences, and what is counted, for tests. Throws
  /// RuntimeError.
  void check() const;

 private:
  /// True if a running sequence waits for its next token, be it that it sits out this step.
  bool any_waits_for_token() const;
  void plan_decodes();
  void plan_prefills();
  void plan_starts();
  void plan_tokens(Sequence& sequence, int64_t count);
  PlannedStep& in_flight(size_t number) { return plans_[(oldest_ + number) % plans_.size()]; }
  /// The oldest step in flight is in flight no more, but its jobs do not know it yet.
  PlannedStep& take_oldest();
  static void commit(const PlannedStep& plan);
  /// SequencePages::extend, for which the youngest are preempted. False: one of `unit` was.
  bool extend(std::span<Sequence* const> unit);
  bool is_held(const Sequence& sequence) const;
  /// True if a step in flight reads the source of a request that has not begun: it then finds it.
  bool is_being_read(const Job& job) const;
  bool start(Sequence& sequence);
  /// Gives a request its source, which the step that is being planned reads where nobody has.
  bool start_source(Job& job, int64_t spare);
  void give_back_source(Job& job);
  /// Preempts the youngest that runs. False: none runs.
  bool preempt_youngest();
  void give_back(Sequence& sequence);

  const RunnerLimits limits_;
  SequencePages pages_;
  DraftPlanner drafts_;
  std::vector<std::unique_ptr<Job>> jobs_;
  size_t num_started_ = 0;  // jobs that are or were running: the first ones
  int64_t num_running_ = 0;
  int64_t num_waiting_ = 0;        // sequences
  bool computes_prompts_ = false;  // a sequence that runs has more than its last token to compute
  bool may_have_drafts_ = false;   // a part of the step that is being planned may have drafts
  int64_t num_finished_ = 0;       // jobs that have not been removed
  uint64_t last_epoch_ = 0;
  std::vector<int32_t> free_slots_;

  std::array<PlannedStep, StepRunner::kMostInFlight> plans_;
  size_t oldest_ = 0;  // index in plans_
  size_t num_in_flight_ = 0;
  PlannedStep* next_ = plans_.data();  // what is being planned
  int64_t budget_ = 0;                 // tokens that the step may still have
  int64_t source_tokens_ = 0;          // tokens of sources that it reads
  int64_t held_back_ = 0;  // and those that it may not, because others would wait too long
  std::vector<Sequence*> unit_;
  GenerationStats stats_;
};

}  // namespace packhorse
