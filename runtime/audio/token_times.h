// Times at which tokens are said, from the weights by which they attend to frames of audio.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packhorse/export.h"

namespace packhorse::audio {

/// A frame here is one token of an encoder's source, a fiftieth of a second.
struct TokenTimesArgs {
  std::span<const float> weights;  // [heads, tokens, frames]
  int64_t heads = 0;
  int64_t tokens = 0;
  int64_t frames = 0;
  int64_t first = 0;  // tokens [first, end) are those whose times are wanted
  int64_t end = 0;
  int64_t filter_width = 7;  // frames whose median counts, an odd number up to 63
};

/// The frame at which each of the tokens [first, end) begins; none falls.
///
/// As openai-whisper does it: weights of a head and a frame are normalised over all tokens to mean
/// 0 and deviation 1, a median filter goes over the frames, heads are averaged, and dynamic time
/// warping (Sakoe and Chiba 1978) finds the path through tokens and frames, both in order, along
/// which the sum is largest. Throws InvalidArgument for sizes that do not fit together.
PACKHORSE_API std::vector<int32_t> token_times(const TokenTimesArgs& args);

}  // namespace packhorse::audio
