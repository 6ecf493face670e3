// Arguments of generation: the choice of tokens, and the step that takes them.
#pragma once

#include <cstdint>

#include "ops/args/common.h"

namespace packhorse {

/// Settings by which one row of logits becomes a token. They lie in the device's memory, one for
/// each row.
///
/// In this order, as in transformers: the biases of a request are added; what a token counts by its
/// past is taken off (repetition_penalty divides a positive logit and multiplies a negative one of
/// every token seen so far, Keskar et al., CTRL, arXiv 1909.05858; of every token generated so far,
/// presence_penalty once and frequency_penalty for each time are subtracted); where `flat`, all
/// logits become 0; boosts raise a logit l by boost * |l|; tokens outside of the mask are left out.
/// Then temperature 0 takes the largest logit, the lowest token where several
/// are largest. Any other temperature divides the logits; of the tokens the top_k largest stay, of
/// those the fewest whose probabilities sum to top_p (Holtzman et al., arXiv 1904.09751), and of
/// those the ones with at least min_p times the largest probability (Nguyen et al., arXiv
/// 2407.01082); one of these is drawn by its probability.
struct SamplingRow {
  float temperature = 0;
  float top_p = 1;    // in (0, 1]
  float min_p = 0;    // in [0, 1]
  int32_t top_k = 0;  // 0: all
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  int32_t counts = -1;     // row of SampleArgs::counts, or -1: no penalties
  int32_t mask = -1;       // row of SampleArgs::masks, or -1: every token is allowed
  int32_t bias_begin = 0;  // biases [bias_begin, bias_end) of SampleArgs are this row's
  int32_t bias_end = 0;
  int32_t boost_end = 0;  // [bias_end, boost_end) are its boosts
  bool flat = false;      // all tokens are equally likely
  int32_t forced = -1;    // this token is taken whatever the logits are, or -1
  /// For beam search, as transformers does it: the logits become log probabilities before anything
  /// else, the most likely tokens are told of what biases, penalties and mask have made of those,
  /// and no token is chosen.
  bool of_beam = false;
  /// Log probabilities, for beam search too, are those of the logits after biases, penalties,
  /// boosts and mask. Then, where `timestamps` is a token, all below it are left out as well if
  /// they are each less likely than all others together.
  bool filtered = false;
  int32_t timestamps = -1;
  uint64_t seed = 0;    // a number of the request
  uint64_t stream = 0;  // the sequence in its request
  uint64_t draw = 0;    // the token in its sequence
};

/// tokens[i] = the token that rows[i] chooses from logits[i], or -1 where no token may be chosen. A
/// row's token depends on its own logits and settings alone. Log probabilities are those of the
/// logits as they are given.
struct SampleArgs {
  TensorView logits;  // [n, vocab_size] float32; biases are added in place
  /// The logits as 16-bit numbers, [n, vocab_size], or empty: where they are given, `logits` is
  /// written only in rows that are changed. For what Ops::samples says alone.
  TensorView source = {};
  const SamplingRow* rows = nullptr;     // [n]
  const int32_t* bias_tokens = nullptr;  // [num_biases]; a row has no token twice, of either kind
  const float* biases = nullptr;         // [num_biases]
  int64_t num_biases = 0;
  const uint32_t* masks = nullptr;  // [num_masks, ceil(vocab_size / 32)], bit v % 32 of word v / 32
  TensorView counts;                // [slots, vocab_size] int32, as CountTokensArgs; or empty
  const int32_t* row_count = nullptr;  // exact number of rows in device memory, or null
  bool wants_logprobs = false;
  int32_t num_top = 0;        // most likely tokens that are told of each row: 0 to kMostTopTokens
  int32_t* tokens = nullptr;  // [n]
  float* logprobs = nullptr;  // [n] of `tokens`, where wanted
  int32_t* top_tokens = nullptr;  // [n, num_top], falling; the lower token first where equal
  float* top_logprobs = nullptr;  // [n, num_top]
  void* workspace = nullptr;      // Ops::sample_workspace bytes
};
inline constexpr int32_t kMostTopTokens = 128;
inline constexpr int64_t kMostVocabSize = int64_t{1} << 19;

/// Counts for penalties: in row `slots[i]` of `counts`, token ids[i] once more where it was
/// generated; where it is of a prompt, that it was seen.
struct CountTokensArgs {
  static constexpr int32_t kSeen = INT32_MIN;  // the sign bit; the others count
  const int32_t* ids = nullptr;                // [n]
  const int32_t* slots = nullptr;              // [n], -1: not counted
  int64_t num_tokens = 0;
  bool of_prompt = false;
  const int32_t* clear = nullptr;  // [num_clear] rows that are forgotten before
  int64_t num_clear = 0;
  TensorView counts;  // [slots, vocab_size] int32
};

/// Completes what the host has uploaded of a step by what is known on the device alone. For each
/// sequence b of the batch:
///   - its pages, pages[page_begins[b]] to pages[page_begins[b + 1] - 1], become the beginning of
///     row b of `table`;
///   - where sources[b] is not negative, its last id becomes tokens[sources[b]], which the step
///     before has chosen, or 0 where that has chosen none;
///   - where count_slots[b] is not negative, its last id is counted once more in this row of
///     `counts`, as CountTokensArgs counts generated tokens. No two sequences have the same row.
struct BeginStepArgs {
  BatchView batch;                       // every sequence has a token
  int32_t* ids = nullptr;                // [num_tokens]
  const int32_t* sources = nullptr;      // [num_sequences]
  const int32_t* tokens = nullptr;       // rows that `sources` may name
  const int32_t* count_slots = nullptr;  // [num_sequences]
  TensorView counts;                     // [slots, vocab_size] int32
  const int32_t* page_begins = nullptr;  // [num_sequences + 1]
  const int32_t* pages = nullptr;        // [page_begins[num_sequences]]
  int32_t* table = nullptr;              // [num_sequences, table_stride]
  int64_t table_stride = 0;
};

}  // namespace packhorse
