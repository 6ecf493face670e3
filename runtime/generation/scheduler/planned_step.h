// A step that was planned, and what the runner is told of each of its sequences.
//
// It knows the sequences that take part, and not why they do: neither their order nor free pages.
#pragma once

#include <cstdint>
#include <vector>

#include "generation/engine/job.h"
#include "generation/runner/step_runner.h"

namespace packhorse {

struct PlannedStep {
  struct Part {
    Sequence* sequence = nullptr;
    uint64_t epoch = 0;
    int64_t count = 0;     // tokens
    int64_t drafts = 0;    // drafts among them: the last ones
    bool samples = false;  // SequenceSlice::sample
    /// Job::source_epoch where the step reads the source of its request, else 0.
    uint64_t reads_source = 0;
    /// False: it has given back its pages since, so that the step's results are not used.
    bool live() const { return sequence->epoch == epoch; }
  };
  std::vector<PageCopy> copies;
  std::vector<Part> parts;
  std::vector<SequenceSlice> sequences;  // in the order of `parts`
  std::vector<SourceSlice> sources;
  std::vector<uint64_t> epochs;  // Sequence::epoch of each when it was built
  int64_t num_tokens = 0;

  /// Takes the memory for so many sequences.
  void reserve(size_t num_sequences);
  /// Makes `sequences` of `parts`. From now on the parts are in flight: their sequences and jobs
  /// count what the step computes and chooses.
  void launch();
};

}  // namespace packhorse
