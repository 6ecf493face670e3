// Images made the input of a model: resized, cropped or padded, turned into numbers, and laid out
// as planes or as packed patches.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "image/resize.h"
#include "packhorse/export.h"

namespace packhorse::image {

/// The number of each byte of each channel, which holds any rescaling and normalisation exactly.
using Values = std::array<std::array<float, 256>, 3>;

/// One image on its way to a model. It becomes `resized`; a frame is cut out of it whose first
/// pixel is (top, left) of the resized image, and whose pixels outside of it (negative positions,
/// for example) have bytes of 0; below and right of the frame, `padded` may add numbers of 0.
struct Plan {
  Pixels pixels;  // 3 channels
  Size resized;
  int64_t top = 0, left = 0;
  Size frame;
  Size padded;  // at least the frame
  float* out = nullptr;
};

/// The order of numbers. patch {0, 0}: planes, [3][padded.height][padded.width]. Otherwise rows of
/// patches, [padded.height / patch.height][padded.width / patch.width], each of which is
/// [3][patch.height][patch.width]: the order in which Conv2d has its weights.
struct Layout {
  Size patch;
};

/// Throws InvalidArgument if a plan is not acceptable, before anything is written. Images and bands
/// of them are spread over `threads` threads of the pool that all share (0: one for each core).
PACKHORSE_API void make_features(const std::vector<Plan>& plans, const Values& values,
                                 const Layout& layout, Filter filter, Rule rule, int threads);

/// Writes the image at `size` to `out`, [height][width][channels]. Throws as make_features.
PACKHORSE_API void resize(const Pixels& pixels, Size size, Filter filter, Rule rule, uint8_t* out,
                          int threads);

}  // namespace packhorse::image
