#include "generation/speculation/speculation.h"

#include <algorithm>

#include "core/math.h"

namespace packhorse {
namespace {

constexpr int64_t kFirstLength = 4;
constexpr int64_t kFailuresBeforePause = 2;
constexpr int64_t kLongestPause = 32;  // steps
// Probability of being accepted from which on a model makes a draft. It is about what a model of a
// third of the size costs.
constexpr double kWorth = 0.4;
constexpr double kFirstRate = 0.8;  // kFirstLength drafts
constexpr double kMemory = 16;      // drafts that the rate is about

}  // namespace

DraftLength::DraftLength(int64_t most, bool by_model)
    : most_(most), length_(std::min(most, kFirstLength)), by_model_(by_model), rate_(kFirstRate) {}

int64_t DraftLength::next() {
  if (pause_ == 0) return length_;
  --pause_;
  return 0;
}

void DraftLength::tell(int64_t drafted, int64_t accepted) {
  if (by_model_) {
    for (int64_t i = 0; i < accepted; ++i) rate_ += (1 - rate_) / kMemory;
    if (accepted < drafted) rate_ -= rate_ / kMemory;
  }
  if (accepted == 0) {
    ++failures_;
    length_ = std::max<int64_t>(1, length_ / 2);
    const int64_t beyond = failures_ - kFailuresBeforePause;
    if (beyond >= 0) pause_ = std::min(kLongestPause, int64_t{1} << std::min<int64_t>(beyond, 30));
    return;
  }
  failures_ = 0;
  if (by_model_) {
    double together = rate_;
    for (length_ = 1; length_ < most_ && (together *= rate_) >= kWorth;) ++length_;
  } else if (accepted == drafted) {
    length_ = std::min(most_, std::max(length_, 2 * drafted));
  } else {
    length_ = std::max<int64_t>(1, ceil_div(length_ + accepted, 2));
  }
}

Speculation::Speculation(int64_t most, size_t top, bool by_ngrams, int64_t max_size)
    : length(most, !by_ngrams),
      input(static_cast<size_t>(most + 1)),
      chosen(input.size()),
      top(input.size() * top),
      num_top(top) {
  if (by_ngrams) ngrams.emplace(max_size);
}

}  // namespace packhorse
