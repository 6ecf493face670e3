// Which beams go on, and which hypotheses are finished: beam search as transformers' `generate`
// defines it (`_beam_search` in generation/utils.py), without its tensors, or with patience as
// openai-whisper does (`BeamSearchDecoder` in decoding.py). Scores are float32.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packhorse/generation.h"

namespace packhorse {

struct BeamSettings {
  int64_t num_beams = 1;
  float length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::kFalse;
  int64_t max_new_tokens = 0;  // until the longest sequence that is wanted
  std::span<const int32_t> stop_ids;
  float patience = 0;  // Sampling::patience
};

/// Candidates that each beam must offer: enough that num_beams of them do not end.
int64_t candidates_per_beam(int64_t num_beams, size_t num_stop_ids, int64_t vocab_size);

/// Candidates that a running beam offers, and its output so far.
struct BeamOffer {
  std::span<const TokenLogprob> candidates;  // the most probable next tokens
  std::span<const int32_t> ids;              // its new tokens so far
  std::span<const float> logprobs;           // and theirs
};

/// A beam of the next step: beam `parent` of this one, and a token more.
struct NextBeam {
  int32_t parent = 0;
  TokenLogprob token;
  float score = 0;  // sum of log-probabilities
};

struct Hypothesis {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  float score = 0;                            // sum of log-probabilities / length ^ length_penalty
  FinishReason reason = FinishReason::kNone;  // kNone: a place that nothing has taken yet
};

class BeamSearch {
 public:
  explicit BeamSearch(const BeamSettings& settings);

  /// One token more. `beams`: a single one at first, then num_beams, in the order of `next()`.
  /// Returns whether the search goes on.
  bool advance(std::span<const BeamOffer> beams);
  /// The num_beams beams that go on, best first.
  std::span<const NextBeam> next() const { return next_; }
  /// At most num_beams, best first. Of a search that is broken off with `reason`, `beams` (without
  /// candidates) take the places that no finished hypothesis has.
  std::vector<Hypothesis> finish(std::span<const BeamOffer> beams = {},
                                 FinishReason reason = FinishReason::kNone) const;

 private:
  struct Candidate {
    NextBeam beam;
    bool ends = false;
    float running_score = 0;  // far down where it ends
  };
  void choose_candidates(std::span<const BeamOffer> beams);
  void choose_running();
  void choose_finished(std::span<const BeamOffer> beams);
  bool may_improve() const;
  /// With patience: every candidate that ends before num_beams others go on is finished.
  bool advance_patiently(std::span<const BeamOffer> beams);
  Hypothesis hypothesis_of(const Candidate& candidate, std::span<const BeamOffer> beams) const;
  bool all_finished() const;
  /// Divisor of the score of a hypothesis of `length` tokens.
  float divisor_of(int64_t length) const;
  float scaled(float score, int64_t length) const;

  const BeamSettings settings_;
  int64_t num_new_ = 0;  // tokens of each running beam
  bool may_improve_ = true;
  std::vector<Candidate> candidates_;
  std::vector<NextBeam> next_;
  std::vector<Hypothesis> finished_;  // num_beams places, best first
};

}  // namespace packhorse
