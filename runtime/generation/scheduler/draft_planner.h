// Drafts of a step: how many each sequence has, and what becomes of them.
//
// It gives drafts what a step and the pages have left, and takes nothing from anybody for them. It
// knows neither other sequences than those that decode nor how a draft model computes.
#pragma once

#include <cstdint>

#include "generation/scheduler/planned_step.h"
#include "generation/scheduler/sequence_pages.h"

namespace packhorse {

class DraftPlanner {
 public:
  /// `draft_context`: positions of the draft model, if there is one. `pages` outlives the object.
  DraftPlanner(SequencePages& pages, int64_t draft_context);

  /// Adds drafts to the parts of a step, all of which decode. Returns how many: `budget` at most.
  int64_t plan(PlannedStep& step, int64_t budget);
  /// The next draft of a sequence, whose step was committed, is the token that was chosen: it is
  /// cached, too.
  void accept(Sequence& sequence);
  /// All drafts of a step that were accepted have been: the rest of them is forgotten.
  void complete(Sequence& sequence, int64_t drafted, int64_t accepted);

 private:
  int64_t draft(Sequence& sequence, int64_t most);

  SequencePages& pages_;
  const int64_t draft_context_;
};

}  // namespace packhorse
