// Numbers that stand for rows that are no tokens, such as those of an image, where pages of the
// cache are compared. Placeholders of all images have one id, but their keys and values differ.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace packhorse {

/// A digest that nobody can find two contents of, such as SHA-256 of the rows.
using ContentDigest = std::array<uint8_t, 32>;

/// Tokens of a prompt whose input is not the row of their id, but all of one content. Requests of
/// the public API bring no rows, and so no contents: a digest without its rows would keep pages
/// apart and change no token, as Sampling::cache_salt does. Whoever adds rows to requests makes the
/// digest of them, so that no caller can give that of others.
struct PromptContent {
  int64_t first = 0;
  int64_t count = 0;
  ContentDigest digest = {};
};

/// Gives each content a number below every token id, the same to equal contents, and never one
/// that another content has had. So ids that have it in place of placeholders are equal only where
/// all inputs are.
class ContentNumbers {
 public:
  /// `most`: contents that are remembered; the one that was asked for longest ago is forgotten.
  explicit ContentNumbers(size_t most = size_t{1} << 16) : most_(most) {}

  /// Nothing once all numbers have been given.
  std::optional<int32_t> number(const ContentDigest& digest);

 private:
  struct Known {
    int32_t number;
    uint64_t asked;
  };

  const size_t most_;
  std::map<ContentDigest, Known> known_;
  std::map<uint64_t, ContentDigest> by_age_;
  uint64_t asked_ = 0;
  int32_t next_ = -2;  // -1 stands for no token
};

/// Throws InvalidArgument unless contents lie in the prompt one behind the other.
void check_contents(std::span<const PromptContent> contents, int64_t prompt_tokens);

/// Tokens of a prompt with a number in their place.
struct NumberedContent {
  int64_t first;
  int64_t count;
  int32_t number;
};

/// Writes `numbers` over those of `ids` that they stand for. `first`: place of ids[0] in the
/// prompt.
void put_numbers(std::span<const NumberedContent> numbers, int64_t first, std::span<int32_t> ids);

}  // namespace packhorse
