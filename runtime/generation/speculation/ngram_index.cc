#include "generation/speculation/ngram_index.h"

#include <algorithm>
#include <bit>

namespace packhorse {

NgramIndex::NgramIndex(int64_t max_tokens) {
  for (auto& ends : ends_) ends.resize(std::bit_ceil(static_cast<size_t>(max_tokens)));
}

// FNV-1a, word by word, and a last mix because places are the low bits.
size_t NgramIndex::place(std::span<const int32_t> ngram) const {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const int32_t id : ngram) hash = (hash ^ static_cast<uint32_t>(id)) * 0x100000001b3u;
  hash ^= hash >> 32;
  return static_cast<size_t>(hash) & (ends_[0].size() - 1);
}

// The n-grams that end with the text are left out: they would be found in place of earlier ones.
void NgramIndex::update(std::span<const int32_t> text) {
  for (; num_indexed_ + 1 < text.size(); ++num_indexed_) {
    const size_t end = num_indexed_ + 1;
    for (size_t n = kShortest; n <= std::min(kLongest, end); ++n) {
      ends_[n - kShortest][place(text.subspan(end - n, n))] = static_cast<uint32_t>(end);
    }
  }
}

bool NgramIndex::find(std::span<const int32_t> text, std::span<int32_t> drafts) const {
  for (size_t n = std::min(kLongest, text.size()); n >= kShortest; --n) {
    const auto last = text.last(n);
    const size_t end = ends_[n - kShortest][place(last)];
    if (end == 0 || !std::ranges::equal(text.subspan(end - n, n), last)) continue;
    for (size_t i = 0; i < drafts.size(); ++i) {
      drafts[i] = end + i < text.size() ? text[end + i] : drafts[i - (text.size() - end)];
    }
    return true;
  }
  return false;
}

}  // namespace packhorse
