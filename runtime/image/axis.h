// Weights of resampling along one axis, by the rules of the two libraries whose 8-bit results
// checkpoints were trained and published with.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/isa/image_kernels.h"

namespace packhorse::image {

enum class Filter { kNearest, kBox, kBilinear, kHamming, kBicubic, kLanczos };

/// Both libraries resample one axis, round to bytes, then resample the other, and stretch a filter
/// over as many pixels as become one. They differ in the weights:
///
/// kPillow: 22 bits behind the point (Pillow 13, src/libImaging/Resample.c). The horizontal pass
/// comes first, unless the height shrinks by more than twice what the width does. kNearest steps
/// through the image by repeated additions, as its affine transformation does (Geometry.c).
///
/// kTorchvision: 16 bits, with the point where the largest weight of the axis fits (PyTorch,
/// aten/src/ATen/native/cpu/UpSampleKernel.cpp: interpolation of uint8 with antialias on CPUs). The
/// horizontal pass comes first. kNearest is its "nearest-exact". It has neither kBox nor kHamming.
enum class Rule { kPillow, kTorchvision };

struct Span {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

/// Weights of the outputs [window.begin, window.end) of an axis.
struct Axis {
  std::vector<cpu::Taps> taps;  // [window.size()], of quads that begin at multiples of 4
  std::vector<uint32_t> words;
  cpu::FixedPoint point;
};

/// Returns the weights of an axis of `in` pixels that becomes `out` pixels. `filter` is not
/// kNearest. Throws InvalidArgument for a filter that the rule does not have.
Axis make_axis(int64_t in, int64_t out, Span window, Filter filter, Rule rule,
               const cpu::ImageKernels& kernels);

/// Returns the pixel that each output in `window` is a copy of, by kNearest. PyTorch rounds in
/// another way where height and width that are asked for add up to at most 128: `small`.
std::vector<int64_t> nearest_pixels(int64_t in, int64_t out, Span window, Rule rule, bool small);

}  // namespace packhorse::image
