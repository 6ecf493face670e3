#include "generation/sampling/token_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace packhorse {
namespace {

// Keeps what is boosted a number.
constexpr double kMostBoost = 1e9;

// True where the text ends with all of the sequence but its last token.
bool completes(std::span<const int32_t> tokens, std::span<const int32_t> sequence) {
  const size_t before = sequence.size() - 1;
  return before <= tokens.size() && std::ranges::equal(tokens.last(before), sequence.first(before));
}

bool has(std::span<const uint32_t> words, int32_t token) {
  return (words[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
}

void remove(std::span<const int32_t> tokens, std::span<uint32_t> words) {
  for (const int32_t token : tokens) words[static_cast<size_t>(token) / 32] &= ~(1u << token % 32);
}

void remove(const RuleEffects::Range& range, std::span<uint32_t> words) {
  const auto end = std::min(static_cast<size_t>(range.end), 32 * words.size());
  auto token = static_cast<size_t>(range.begin);
  while (token < end) {
    if (token % 32 == 0 && token + 32 <= end) {
      words[token / 32] = 0;
      token += 32;
    } else {
      words[token / 32] &= ~(1u << token % 32);
      ++token;
    }
  }
}

}  // namespace

TokenRules::TokenRules(const Sampling& sampling, std::span<const int32_t> stop_ids,
                       int64_t prompt_tokens, int64_t max_size, std::span<const int32_t> source)
    : sampling_(sampling),
      stop_ids_(stop_ids),
      prompt_tokens_(prompt_tokens),
      max_new_(max_size - prompt_tokens),
      source_(source) {
  const auto is_long = [](const auto& ids) { return ids.size() > 1; };
  read_tokens_ = sampling.timestamps.has_value() || sampling.no_repeat_ngram_size > 0 ||
                 sampling.encoder_no_repeat_ngram_size > 0 ||
                 std::ranges::any_of(sampling.bad_words_ids, is_long) ||
                 std::ranges::any_of(sampling.sequence_bias, is_long, &SequenceBias::ids);
  any_ = read_tokens_ || !sampling.sequence_bias.empty() || !sampling.bad_words_ids.empty() ||
         sampling.min_new_tokens > 0 || !sampling.suppress_tokens.empty() ||
         !sampling.begin_suppress_tokens.empty() || sampling.forced_bos_token_id.has_value() ||
         !sampling.forced_eos_token_id.empty() ||
         sampling.exponential_decay_length_penalty.has_value();
}

void TokenRules::apply(std::span<const int32_t> tokens, int64_t num_new,
                       RuleEffects& effects) const {
  effects.boosted = {};
  effects.forced = {};
  effects.banned.clear();
  effects.suppressed.clear();
  effects.ruled_out = {};
  // All that there may be at any place, so that nothing grows later.
  effects.biases.reserve(sampling_.logit_bias.size() + sampling_.sequence_bias.size());
  effects.suppressed.reserve(sampling_.suppress_tokens.size() +
                             sampling_.begin_suppress_tokens.size());
  const bool repeats = sampling_.no_repeat_ngram_size > 0;
  const bool copies = sampling_.encoder_no_repeat_ngram_size > 0;
  effects.banned.reserve(sampling_.bad_words_ids.size() + stop_ids_.size() +
                         (repeats ? static_cast<size_t>(prompt_tokens_ + max_new_) : 0) +
                         (copies ? source_.size() : 0));
  bias(tokens, effects);

  ban_repetitions(tokens, sampling_.no_repeat_ngram_size, tokens, effects);
  ban_repetitions(source_, sampling_.encoder_no_repeat_ngram_size, tokens, effects);
  for (const std::vector<int32_t>& sequence : sampling_.bad_words_ids) {
    // A token that ends the text is no word.
    if (sequence.size() == 1 && std::ranges::binary_search(stop_ids_, sequence[0])) continue;
    if (completes(tokens, sequence)) effects.banned.push_back(sequence.back());
  }
  if (num_new < sampling_.min_new_tokens) {
    effects.banned.insert(effects.banned.end(), stop_ids_.begin(), stop_ids_.end());
  }

  if (num_new == 0 && prompt_tokens_ == 1 && sampling_.forced_bos_token_id) {
    effects.forced = {&*sampling_.forced_bos_token_id, 1};
  }
  if (num_new == max_new_ - 1 && !sampling_.forced_eos_token_id.empty()) {
    effects.forced = sampling_.forced_eos_token_id;
  }

  if (const auto& decay = sampling_.exponential_decay_length_penalty) {
    if (num_new > decay->start) {
      const double power = std::pow(decay->factor, static_cast<double>(num_new - decay->start));
      effects.boosted = stop_ids_;
      effects.boost = static_cast<float>(std::min(power - 1, kMostBoost));
    }
  }

  if (sampling_.timestamps) order_timestamps(tokens, num_new, effects);

  const auto& always = sampling_.suppress_tokens;
  effects.suppressed.assign(always.begin(), always.end());
  // A token that is forced after a prompt of one does not count as the first.
  const int64_t first = prompt_tokens_ == 1 && sampling_.forced_bos_token_id ? 1 : 0;
  if (num_new == first) {
    const auto& at_first = sampling_.begin_suppress_tokens;
    effects.suppressed.insert(effects.suppressed.end(), at_first.begin(), at_first.end());
  }
}

std::span<const int32_t> TokenRules::of_window(std::span<const int32_t> tokens,
                                               int64_t num_new) const {
  const TimestampRules& rules = *sampling_.timestamps;
  const auto prompt = tokens.first(tokens.size() - static_cast<size_t>(num_new));
  const auto is_special = [&](int32_t token) {
    return token >= rules.end_of_text && token < rules.begin;
  };
  const auto behind = std::find_if(prompt.rbegin(), prompt.rend(), is_special).base();
  const bool begun = behind != prompt.end() && *behind >= rules.begin;
  const auto size = static_cast<size_t>(num_new + (begun ? prompt.end() - behind : 0));
  return tokens.last(size);
}

void TokenRules::order_timestamps(std::span<const int32_t> tokens, int64_t num_new,
                                  RuleEffects& effects) const {
  constexpr int32_t kEnd = std::numeric_limits<int32_t>::max();
  const TimestampRules& rules = *sampling_.timestamps;
  const int32_t begin = rules.begin;
  auto& [first, second, third] = effects.ruled_out;
  if (rules.no_timestamps >= 0) third = {rules.no_timestamps, rules.no_timestamps + 1};
  const std::span<const int32_t> found = of_window(tokens, num_new);
  if (found.empty()) {
    first = {0, begin};
    const int64_t last = begin + rules.max_initial.value_or(kEnd);
    if (last < kEnd) second = {static_cast<int32_t>(last) + 1, kEnd};
    return;
  }
  const bool after_time = found.back() >= begin;
  const bool paired = found.size() < 2 || found[found.size() - 2] >= begin;
  if (after_time && paired) {
    first = {begin, kEnd};
    return;
  }
  if (after_time) first = {0, rules.end_of_text};
  const auto time =
      std::find_if(found.rbegin(), found.rend(), [&](int32_t token) { return token >= begin; });
  // A segment ends later than it begins, and the next may begin where one ends.
  if (time != found.rend()) second = {begin, *time + (after_time ? 0 : 1)};
}

void TokenRules::bias(std::span<const int32_t> tokens, RuleEffects& effects) const {
  effects.biases.assign(sampling_.logit_bias.begin(), sampling_.logit_bias.end());
  for (const SequenceBias& sequence : sampling_.sequence_bias) {
    if (!completes(tokens, sequence.ids)) continue;
    const int32_t token = sequence.ids.back();
    const auto found = std::ranges::find(effects.biases, token, &TokenBias::first);
    if (found == effects.biases.end()) {
      effects.biases.emplace_back(token, sequence.bias);
    } else {
      found->second += sequence.bias;
    }
  }
}

void TokenRules::ban_repetitions(std::span<const int32_t> text, int64_t ngram_size,
                                 std::span<const int32_t> tokens, RuleEffects& effects) {
  const auto size = static_cast<size_t>(ngram_size);
  if (size == 0 || text.size() < size || tokens.size() < size - 1) return;
  const std::span<const int32_t> begun = tokens.last(size - 1);
  for (size_t i = 0; i + size <= text.size(); ++i) {
    if (size > 1 && text[i + size - 2] != begun.back()) continue;
    if (std::ranges::equal(text.subspan(i, size - 1), begun)) {
      effects.banned.push_back(text[i + size - 1]);
    }
  }
}

bool write_allowed(const RuleEffects& effects, std::span<const uint32_t> mask,
                   std::span<uint32_t> words) {
  if (mask.empty()) {
    std::ranges::fill(words, ~uint32_t{0});
  } else {
    std::ranges::copy(mask, words.begin());
  }
  bool forces = false;
  for (const int32_t token : effects.forced) forces |= mask.empty() || has(mask, token);
  if (forces) {
    std::ranges::fill(words, 0u);
    for (const int32_t token : effects.forced) {
      if (mask.empty() || has(mask, token))
        words[static_cast<size_t>(token) / 32] |= 1u << token % 32;
    }
  } else {
    remove(effects.banned, words);
  }
  remove(effects.suppressed, words);
  for (const RuleEffects::Range& range : effects.ruled_out) remove(range, words);
  return forces;
}

}  // namespace packhorse
