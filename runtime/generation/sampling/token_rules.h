// Effects of a request's settings on tokens by the place in the text and by the tokens before
// it: bans, forced tokens, biases of sequences. They are computed on the host for each row of
// logits, from nothing but the text so far, and reach the device as biases, boosts and a mask.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "packhorse/sampling.h"

namespace packhorse {

using TokenBias = std::pair<int32_t, float>;

/// Effects at one place of a text. Kept from place to place, so that it allocates no
/// more once it has grown.
struct RuleEffects {
  std::vector<TokenBias> biases;     // each token once, logit_bias among them
  std::span<const int32_t> boosted;  // tokens whose logit l grows by boost * |l|
  float boost = 0;
  std::span<const int32_t> forced;  // one of these is chosen, where a mask has any of them
  std::vector<int32_t> banned;      // where none is forced
  std::vector<int32_t> suppressed;  // also where one is forced
  struct Range {
    int32_t begin = 0;
    int32_t end = 0;
  };
  std::array<Range, 3> ruled_out = {};  // like `suppressed`; empty ones are none

  bool restrict_tokens() const {
    return !forced.empty() || !banned.empty() || !suppressed.empty() ||
           std::ranges::any_of(ruled_out,
                               [](const Range& range) { return range.end > range.begin; });
  }
};

class TokenRules {
 public:
  /// `sampling`, `stop_ids` (of the request and of the model) and `source`, what an encoder reads,
  /// outlive the object. `max_size`: of prompt and new tokens.
  TokenRules(const Sampling& sampling, std::span<const int32_t> stop_ids, int64_t prompt_tokens,
             int64_t max_size, std::span<const int32_t> source = {});

  /// False: there are none of these settings.
  bool any() const { return any_; }
  /// True where effects depend on the tokens, not on their number alone.
  bool read_tokens() const { return read_tokens_; }
  /// The effects on the token after `num_new` new ones. `tokens`: prompt and new tokens, where
  /// read_tokens.
  void apply(std::span<const int32_t> tokens, int64_t num_new, RuleEffects& effects) const;

 private:
  void bias(std::span<const int32_t> tokens, RuleEffects& effects) const;
  /// Tokens of time and text that were written so far: the new ones and, where the prompt ends with
  /// a time and text behind its last special token, those before them.
  std::span<const int32_t> of_window(std::span<const int32_t> tokens, int64_t num_new) const;
  /// Tokens that TimestampRules forbid after the new ones of `tokens`.
  void order_timestamps(std::span<const int32_t> tokens, int64_t num_new,
                        RuleEffects& effects) const;
  /// Bans tokens that end `size` tokens of `text` of which the others end `tokens`; 0: none.
  static void ban_repetitions(std::span<const int32_t> text, int64_t size,
                              std::span<const int32_t> tokens, RuleEffects& effects);

  const Sampling& sampling_;
  const std::span<const int32_t> stop_ids_;
  const int64_t prompt_tokens_;
  const int64_t max_new_;
  const std::span<const int32_t> source_;
  bool any_ = false;
  bool read_tokens_ = false;
};

/// Writes to `words` (bit t % 32 of word t / 32) the tokens that are left of `mask`, or of all
/// where it is empty. Returns whether they are forced tokens, which are equally likely.
bool write_allowed(const RuleEffects& effects, std::span<const uint32_t> mask,
                   std::span<uint32_t> words);

}  // namespace packhorse
