// The scheduler's dealings with drafts: how many a step has, and what becomes of them.
#include <algorithm>

#include "generation/scheduler/scheduler.h"

namespace packhorse {

// All sequences that were planned so far decode. Those that draft share the rows that are left.
void Scheduler::plan_drafts() {
  if (!drafts_) return;
  std::vector<PlannedStep::Part>& parts = next_->parts;
  int64_t drafting = std::ranges::count_if(
      parts, [](const auto& part) { return part.sequence->speculation != nullptr; });
  int64_t rows = kMostDraftedRows - std::ssize(parts);
  for (PlannedStep::Part& part : parts) {
    if (part.sequence->speculation == nullptr) continue;
    int64_t share = rows / std::max<int64_t>(drafting, 1);
    --drafting;
    part.drafts = draft(*part.sequence, std::min(share, budget_));
    part.count += part.drafts;
    budget_ -= part.drafts;
    rows -= part.drafts;
  }
}

int64_t Scheduler::draft(Sequence& sequence, int64_t most) {
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
  while (pages_of(sequence.size() + most) > static_cast<int64_t>(sequence.pages.size())) {
    if (pool_.available() == 0) {
      return static_cast<int64_t>(sequence.pages.size()) * kPageTokens - sequence.size();
    }
    sequence.pages.push_back(pool_.allocate());
  }
  return most;
}

void Scheduler::accept(Sequence& sequence) {
  Speculation& speculation = *sequence.speculation;
  ++sequence.computed;
  ++sequence.committed;
  if (speculation.ahead > 0) {
    --speculation.ahead;
    ++speculation.computed;
  }
  ++stats_.new_tokens;
  ++stats_.accepted_tokens;
  publish(sequence);
}

void Scheduler::complete_drafts(Sequence& sequence, int64_t drafted, int64_t accepted) {
  Speculation& speculation = *sequence.speculation;
  speculation.length.tell(drafted, accepted);
  speculation.ahead = 0;
  // A page that only rejected drafts lie in may be what another sequence lacks.
  const auto pages = static_cast<size_t>(pages_of(sequence.computed));
  for (; sequence.pages.size() > pages; sequence.pages.pop_back()) {
    pool_.release(sequence.pages.back());
  }
}

// Pages of a request that a model drafts for are published when both models have computed them: as
// far as the context of the draft model goes.
int64_t Scheduler::publishable(const Sequence& sequence) const {
  if (!sequence.job->drafts_by_model) return sequence.committed;
  const int64_t drafted = sequence.speculation->computed;
  return drafted < draft_context_ ? std::min(drafted, sequence.committed) : sequence.committed;
}

}  // namespace packhorse
