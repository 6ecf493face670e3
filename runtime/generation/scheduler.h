// Which tokens the next step has, and who holds which pages.
//
// Requests are served in the order of their arrival. A step takes, within its budget of tokens,
//   1. a token of each sequence that waits for nothing else but its next token, and drafts of what
//      follows it, for which nothing else gives way;
//   2. pieces of prompts (or of what was preempted) that are being computed, the oldest first;
//   3. sequences that begin: the oldest that waits, and no younger one before it, when all pages of
//      its prompt are there.
// Where 1 finds no page, the youngest sequence is preempted: its pages go back (those published may
// be found again), and it waits at its place in the order. So the oldest always goes on.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "generation/job.h"
#include "generation/page_pool.h"
#include "generation/step_runner.h"

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

  /// Decides the next step. It has no sequences where there is no job; else it has some.
  Step plan();
  /// The sequences of the step, in its order.
  std::span<Sequence* const> planned() const { return planned_; }
  /// The step was run: its tokens are cached, and full pages published.
  void commit();

  /// The next draft of a sequence, whose step was committed, is the token that was chosen: it is
  /// cached, too.
  void accept(Sequence& sequence);
  /// All drafts that were accepted have been: the rest of them is forgotten.
  void settle(Sequence& sequence, int64_t accepted);

  /// The sequence needs no more steps. Gives back what it holds.
  void finish(Sequence& sequence);
  /// Beams become those of job.search->next(): sequence i takes the place of beam i.
  void fork(Job& job);
  void remove_finished();

  /// Counts of sequences, pages and tokens.
  GenerationStats stats() const;
  /// PagePool::check with the tables of all sequences, for tests.
  void check() const;

 private:
  void plan_decodes();
  void plan_drafts();
  int64_t draft(Sequence& sequence, int64_t most);
  void plan_prefills();
  void plan_starts();
  void plan_tokens(Sequence& sequence, int64_t count);
  void build(size_t number);
  /// Takes the page that the next token of each of them goes to. False: one was preempted.
  bool extend(std::span<Sequence* const> unit);
  int64_t pages_to_extend(std::span<Sequence* const> unit) const;
  bool is_held(const Sequence& sequence) const;
  bool start(Sequence& sequence);
  bool take_prompt_pages(Sequence& sequence);
  /// Preempts the youngest that runs. False: none runs.
  bool preempt_youngest();
  void give_back(Sequence& sequence);
  void publish(Sequence& sequence);
  int64_t publishable(const Sequence& sequence) const;

  const RunnerLimits limits_;
  const bool shares_prefixes_;
  const int64_t draft_context_;  // positions of the draft model; where there is none, the model's
  PagePool pool_;
  std::vector<std::unique_ptr<Job>> jobs_;
  size_t num_started_ = 0;  // jobs that are or were running: the first ones
  int64_t num_running_ = 0;
  uint64_t next_salt_ = 1;
  std::vector<int32_t> free_slots_;

  int64_t budget_ = 0;
  std::vector<PageCopy> copies_;
  std::vector<Sequence*> planned_;
  std::vector<int64_t> counts_;  // tokens of each
  std::vector<StepSequence> step_;
  std::vector<Sequence*> unit_;
  GenerationStats stats_;
};

}  // namespace packhorse
