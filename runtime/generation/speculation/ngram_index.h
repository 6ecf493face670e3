// Where the last tokens of a text stood before, so that what followed them there may be drafted.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace packhorse {

/// Prompt lookup decoding (Saxena 2023; "prompt_lookup_num_tokens" of transformers, "ngram" of
/// vLLM). A table for each length of n-gram says where the latest one of a hash has ended. It is
/// brought up to date in constant time for each token, and takes no memory after it was made. An
/// n-gram whose place in the table another one has taken is not found: the text is compared, so
/// that what is found is always right.
class NgramIndex {
 public:
  /// Lengths of n-grams that are looked up: the longest that stood before decides.
  static constexpr size_t kLongest = 4;
  static constexpr size_t kShortest = 2;

  /// `max_tokens`: of the text.
  explicit NgramIndex(int64_t max_tokens);

  /// Takes in the tokens that have come since the last time. `text` has only grown.
  void update(std::span<const int32_t> text);
  /// Writes to `drafts` what followed the last tokens of the text where they stood before, the
  /// latest time: all of `drafts`, going on in the text's own repetition where it reaches the end.
  /// False: they did not stand before. `text` was taken in by `update`.
  bool find(std::span<const int32_t> text, std::span<int32_t> drafts) const;

 private:
  size_t place(std::span<const int32_t> ngram) const;

  /// By length and hash: the end of the n-gram, exclusive; 0: none.
  std::array<std::vector<uint32_t>, kLongest - kShortest + 1> ends_;
  size_t num_indexed_ = 0;  // n-grams that end at or before it are there
};

}  // namespace packhorse
