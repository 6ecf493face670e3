#include "generation/sampling/masks.h"

#include <algorithm>
#include <limits>

#include "core/math.h"

namespace packhorse {

size_t num_words(int64_t vocab_size) { return static_cast<size_t>(ceil_div(vocab_size, 32)); }

std::vector<uint32_t> words_of(std::span<const int32_t> ids, int64_t vocab_size) {
  std::vector<uint32_t> words(ids.empty() ? 0 : num_words(vocab_size));
  for (const int32_t id : ids) words[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  return words;
}

bool prepare_mask(Sequence& sequence, int64_t vocab_size) {
  std::vector<uint32_t>& words = sequence.mask_words;
  const std::vector<uint32_t>& allowed = sequence.job->allowed_words;
  sequence.masked = false;
  if (words.empty()) return true;
  std::ranges::fill(words, 0u);
  if (sequence.mask == nullptr || !sequence.mask->fill(words)) {
    if (allowed.empty()) return true;
    words = allowed;
  } else {
    // Bits behind the vocabulary mean nothing.
    if (vocab_size % 32 != 0) words.back() &= (1u << (vocab_size % 32)) - 1;
    for (size_t i = 0; i < allowed.size(); ++i) words[i] &= allowed[i];
  }
  sequence.masked = std::ranges::any_of(words, [](uint32_t word) { return word != 0; });
  return sequence.masked;
}

void drop_candidates(Sequence& beam) {
  for (TokenLogprob& token : beam.top) token.logprob = -std::numeric_limits<float>::infinity();
}

}  // namespace packhorse
