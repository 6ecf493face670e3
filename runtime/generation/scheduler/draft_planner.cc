#include "generation/scheduler/draft_planner.h"

#include <algorithm>

namespace packhorse {

DraftPlanner::DraftPlanner(SequencePages& pages, int64_t draft_context)
    : pages_(pages), draft_context_(draft_context) {}

// Sequences that draft share the rows that are left.
int64_t DraftPlanner::plan(PlannedStep& step, int64_t budget) {
  const int64_t before = budget;
  int64_t drafting = std::ranges::count_if(
      step.parts, [](const auto& part) { return part.sequence->speculation != nullptr; });
  int64_t rows = kMostDraftedRows - std::ssize(step.parts);
  for (PlannedStep::Part& part : step.parts) {
    if (part.sequence->speculation == nullptr) continue;
    const int64_t share = rows / std::max<int64_t>(drafting, 1);
    --drafting;
    part.drafts = draft(*part.sequence, std::min(share, budget));
    part.count += part.drafts;
    budget -= part.drafts;
    rows -= part.drafts;
  }
  return before - budget;
}

int64_t DraftPlanner::draft(Sequence& sequence, int64_t most) {
  Speculation& speculation = *sequence.speculation;
  most = std::min(most, speculation.length.next());
  if (sequence.pending) return 0;
  // The last token that is wanted is computed by no step.
  most = std::min(most, sequence.job->max_size - sequence.size() - 1);
  if (!speculation.ngrams) most = std::min(most, draft_context_ - sequence.size() + 1);
  if (most <= 0) return 0;
  if (speculation.ngrams) {
    speculation.ngrams->update(sequence.tokens);
    const auto drafts = std::span(speculation.input).subspan(1, static_cast<size_t>(most));
    if (!speculation.ngrams->find(sequence.tokens, drafts)) return 0;
  }
  return pages_.extend_to_drafts(sequence, most);
}

void DraftPlanner::accept(Sequence& sequence) {
  Speculation& speculation = *sequence.speculation;
  ++sequence.computed;
  ++sequence.committed;
  if (speculation.ahead > 0) {
    --speculation.ahead;
    ++speculation.computed;
  }
  pages_.publish(sequence);
}

void DraftPlanner::complete(Sequence& sequence, int64_t drafted, int64_t accepted) {
  sequence.speculation->length.tell(drafted, accepted);
  sequence.speculation->ahead = 0;
  pages_.trim(sequence);
}

}  // namespace packhorse
