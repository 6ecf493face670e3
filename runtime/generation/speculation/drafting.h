// Which requests draft, and the drafts that a smaller model makes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "generation/engine/job.h"
#include "generation/runner/step_runner.h"
#include "generation/scheduler/planned_step.h"

namespace packhorse {

/// Most drafts of a step of a session with these options.
int64_t most_drafts(const GenerationOptions& options);

/// Gives the sequences of a request that drafts their Speculation. Throws InvalidArgument where it
/// asks for more than the options allow.
void add_speculation(Job& job, const GenerationOptions& options);

/// Drafts by a smaller model, which keeps its keys and values in pages of the same numbers: where
/// a page is found, shared or given back, both models' are.
///
/// It computes what the other model computes, in the same steps, so that pages can be published
/// when they are full; for tokens one by one it may stay behind by less than a page.
class ModelDrafter {
 public:
  /// `runner` outlives the object.
  explicit ModelDrafter(StepRunner& runner);

  /// Fills in the drafts of a step that was planned, and brings the draft model's cache up to the
  /// step's tokens. Throws as StepRunner::run does.
  void run(const PlannedStep& plan);

 private:
  void catch_up(const PlannedStep& plan);
  void draft_next(const PlannedStep& plan, int64_t number);
  /// Adds tokens of a sequence to the next step of the draft model. With a `draft` from 1 on, the
  /// token after these becomes the sequence's draft of that number.
  void add(Sequence& sequence, std::span<const int32_t> ids, int64_t position, int64_t draft);
  void run();

  StepRunner& runner_;
  const RunnerLimits limits_;
  std::vector<SequenceSlice> step_;   // the next one of the draft model
  std::vector<TokenLogprob> chosen_;  // [max_sequences]
  std::vector<int32_t*> drafts_;      // where what is chosen goes; null: nothing is
  int64_t num_tokens_ = 0;
};

}  // namespace packhorse
