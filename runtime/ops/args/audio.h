// Arguments of the operator that makes frames of samples.
#pragma once

#include <cstdint>

#include "ops/args/common.h"

namespace packhorse {

inline constexpr int64_t kFrameHop = 160;     // samples from frame to frame
inline constexpr int64_t kFrameWindow = 400;  // samples that a frame hears
inline constexpr int64_t kMostMels = 256;     // bands of a frame

/// out[i] = log10(max(1e-10, p)) of the powers p of a frame in bands of the mel scale, as
/// packhorse/audio.h defines them, computed in float64 and rounded once. Frame i hears the samples
/// from kFrameHop * i on, which are finite.
struct MelLogsArgs {
  const float* samples = nullptr;  // [kFrameHop * (F - 1) + kFrameWindow]
  TensorView out;                  // [F, bands] float32, at most kMostMels of them
  float* largest = nullptr;        // [F]: the largest number of each row of `out`
};

}  // namespace packhorse
