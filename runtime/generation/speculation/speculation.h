// Speculative decoding, as a sequence knows it: how far it drafts, and what became of it.
//
// A step computes the last token of a sequence and the tokens that are drafted to follow it, and
// chooses a token from each of their rows, each with its own place's random numbers. As long as
// what is chosen is what was drafted, the next row is that of the text, so that its token counts
// too. A row does not depend on how many tokens its step has: the text is the same bits as without
// drafts. (Leviathan et al., arXiv 2211.17192, accept by chance, with the right distribution; here
// a draft is accepted where it equals what is drawn.)
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "generation/speculation/ngram_index.h"
#include "packhorse/generation.h"

namespace packhorse {

/// Number of tokens that a sequence drafts: more while all are accepted, fewer where some are not,
/// and none for a while after the first of several in a row was not. It counts, and looks at no
/// clock.
class DraftLength {
 public:
  /// `by_model`: drafts cost time and are right at a steady rate, so that as many are made as are
  /// likely enough to be accepted together. Else they cost little, and come in runs.
  DraftLength(int64_t most, bool by_model);
  /// True if the next step may have drafts.
  bool drafts() const { return pause_ == 0; }
  /// Most drafts of the next step, which the sequence has a token in.
  int64_t next();
  /// Takes the outcome of a step that had drafts.
  void tell(int64_t drafted, int64_t accepted);

 private:
  int64_t most_;
  int64_t length_;
  bool by_model_;
  double rate_;           // share of a model's drafts that were accepted, lately
  int64_t failures_ = 0;  // steps in a row that nothing was accepted in
  int64_t pause_ = 0;     // steps without drafts that are left
};

struct Speculation {
  /// `ngrams`: drafts are looked up; else a model makes them. `num_top`: Sampling::logprobs.
  Speculation(int64_t most, size_t num_top, bool ngrams, int64_t max_size);

  DraftLength length;
  bool in_flight = false;            // a step with drafts has not been collected
  std::vector<int32_t> input;        // rows of a step with drafts: the last token, and the drafts
  std::vector<TokenLogprob> chosen;  // from the rows of `input`
  std::vector<TokenLogprob> top;     // [input, num_top]
  size_t num_top = 0;

  std::optional<NgramIndex> ngrams;
  /// Tokens of the text whose keys and values a draft model has cached, and drafts after these.
  int64_t computed = 0;
  int64_t ahead = 0;
};

}  // namespace packhorse
