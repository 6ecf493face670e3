#include "generation/kv_cache/content_numbers.h"

#include <algorithm>
#include <limits>

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {

std::optional<int32_t> ContentNumbers::number(const ContentDigest& digest) {
  const auto found = known_.find(digest);
  if (found != known_.end()) {
    by_age_.erase(found->second.asked);
    found->second.asked = ++asked_;
    by_age_.emplace(asked_, digest);
    return found->second.number;
  }
  if (next_ == std::numeric_limits<int32_t>::min()) return std::nullopt;
  if (known_.size() >= most_) {
    known_.erase(by_age_.begin()->second);
    by_age_.erase(by_age_.begin());
  }
  by_age_.emplace(++asked_, digest);
  known_.emplace(digest, Known{.number = next_, .asked = asked_});
  return next_--;
}

void check_contents(std::span<const PromptContent> contents, int64_t prompt_tokens) {
  int64_t end = 0;
  for (size_t i = 0; i < contents.size(); ++i) {
    const PromptContent& content = contents[i];
    if (content.first < end || content.count < 1 || content.count > prompt_tokens - content.first) {
      throw InvalidArgument(concat("contents[", i, "] is ", content.count, " tokens from ",
                                   content.first, " on, expected some between ", end, " and ",
                                   prompt_tokens));
    }
    end = content.first + content.count;
  }
}

void put_numbers(std::span<const NumberedContent> numbers, int64_t first, std::span<int32_t> ids) {
  const int64_t end = first + std::ssize(ids);
  for (const NumberedContent& content : numbers) {
    const int64_t from = std::max(content.first, first);
    const int64_t to = std::min(content.first + content.count, end);
    for (int64_t i = from; i < to; ++i) ids[static_cast<size_t>(i - first)] = content.number;
  }
}

}  // namespace packhorse
