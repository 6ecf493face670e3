#include "image/axis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "core/math.h"
#include "packhorse/error.h"

namespace packhorse::image {
namespace {

constexpr double kPi = std::numbers::pi;
constexpr int kMostBits = 22;  // behind the point: 8 for the byte and 2 for what filters add to it

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= kPi;
  return std::sin(x) / x;
}

double box(double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }

double bilinear(double x) {
  x = std::abs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

double hamming(double x) {
  x = std::abs(x);
  if (x == 0.0) return 1.0;
  if (x >= 1.0) return 0.0;
  x *= kPi;
  return std::sin(x) / x * (double{0.54f} + double{0.46f} * std::cos(x));  // floats in Pillow
}

// R. Keys, "Cubic convolution interpolation for digital image processing" (1981), a = -1/2.
double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
  if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * a;
  return 0.0;
}

double lanczos(double x) { return x >= -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3.0) : 0.0; }

struct Kernel {
  double (*value)(double x);
  double support;  // half of the pixels that it covers
};

Kernel kernel_of(Filter filter) {
  switch (filter) {
    case Filter::kBox:
      return {box, 0.5};
    case Filter::kBilinear:
      return {bilinear, 1.0};
    case Filter::kHamming:
      return {hamming, 1.0};
    case Filter::kBicubic:
      return {bicubic, 2.0};
    default:
      return {lanczos, 3.0};
  }
}

struct Weights {
  int64_t first = 0;
  std::vector<double> values;
};

// Rounds as both libraries do, by a sum of its own: std::lround differs from it just below a half,
// and so would the image.
int64_t rounded(double value) {
  const double shifted = value + 0.5;
  return static_cast<int64_t>(shifted);
}

// The weights of one output in double precision, whose sum is 1. The order of the operations is
// that of both libraries.
class Resampling {
 public:
  Resampling(int64_t in, int64_t out, Filter filter)
      : in_(in),
        kernel_(kernel_of(filter)),
        scale_(static_cast<double>(in) / static_cast<double>(out)),
        support_(kernel_.support * std::max(scale_, 1.0)),
        step_(1.0 / std::max(scale_, 1.0)) {}

  void weigh(int64_t output, Weights& weights) const {
    const double center = (static_cast<double>(output) + 0.5) * scale_;
    const int64_t first = std::max(rounded(center - support_), int64_t{0});
    const int64_t end = std::min(rounded(center + support_), in_);
    weights.first = first;
    weights.values.clear();
    double sum = 0;
    for (int64_t i = 0; i < end - first; ++i) {
      const double offset = static_cast<double>(i + first) - center + 0.5;
      weights.values.push_back(kernel_.value(offset * step_));
      sum += weights.values.back();
    }
    if (sum == 0.0) return;
    for (double& value : weights.values) value /= sum;
  }

 private:
  const int64_t in_;
  const Kernel kernel_;
  const double scale_, support_, step_;
};

// The most bits behind the point with which no weight takes more than 15 bits and its sign.
int narrow_bits(const std::vector<Weights>& all) {
  double largest = 0;
  for (const Weights& weights : all) {
    for (const double value : weights.values) largest = std::max(largest, value);
  }
  int bits = 0;
  while (bits < kMostBits && rounded(largest * (1 << (bits + 1))) < (1 << 15)) {
    ++bits;
  }
  return bits;
}

int32_t fixed(double weight, int bits) {
  return static_cast<int32_t>((weight < 0 ? -0.5 : 0.5) + weight * (1 << bits));
}

}  // namespace

Axis make_axis(int64_t in, int64_t out, Span window, Filter filter, Rule rule,
               const cpu::ImageKernels& kernels) {
  if (rule == Rule::kTorchvision && (filter == Filter::kBox || filter == Filter::kHamming)) {
    throw InvalidArgument(
        "torchvision has no filters box and hamming: expected nearest, bilinear, "
        "bicubic or lanczos, or the rule of Pillow");
  }
  const Resampling resampling(in, out, filter);
  Axis axis;
  // Weights outside of the window count for the place of torchvision's point.
  const Span weighed = rule == Rule::kPillow ? window : Span{0, out};
  std::vector<Weights> all(static_cast<size_t>(weighed.size()));
  for (int64_t i = 0; i < weighed.size(); ++i) {
    resampling.weigh(weighed.begin + i, all[static_cast<size_t>(i)]);
  }
  axis.point.shift = rule == Rule::kPillow ? kMostBits : narrow_bits(all);
  std::vector<int32_t> quads;
  int32_t largest = 0, smallest = 0;
  for (int64_t output = window.begin; output < window.end; ++output) {
    const Weights& weights = all[static_cast<size_t>(output - weighed.begin)];
    // A weight beyond both ends of an axis is not there: at least one pixel counts.
    const auto count = static_cast<int64_t>(weights.values.size());
    const int64_t first = weights.first / 4, end = ceil_div(weights.first + count, int64_t{4});
    axis.taps.push_back({.first = static_cast<int32_t>(first),
                         .quads = static_cast<int32_t>(end - first),
                         .words = static_cast<int64_t>(quads.size() / 4)});
    const size_t begin = quads.size();
    quads.resize(begin + static_cast<size_t>(end - first) * 4);
    for (int64_t i = 0; i < count; ++i) {
      const int32_t value = fixed(weights.values[static_cast<size_t>(i)], axis.point.shift);
      quads[begin + static_cast<size_t>(weights.first - first * 4 + i)] = value;
      largest = std::max(largest, value);
      smallest = std::min(smallest, value);
    }
  }
  // Two signed bytes, and one number of 16 bits, hold these.
  axis.point.narrow = largest <= 0x7f7f && smallest >= -0x8000;
  const auto words = static_cast<size_t>(kernels.words[axis.point.narrow ? 1 : 0]);
  axis.words.resize(quads.size() / 4 * words);
  for (size_t quad = 0; quad * 4 < quads.size(); ++quad) {
    kernels.encode_taps(&quads[quad * 4], axis.point.narrow, &axis.words[quad * words]);
  }
  for (cpu::Taps& taps : axis.taps) taps.words *= static_cast<int64_t>(words);
  return axis;
}

std::vector<int64_t> nearest_pixels(int64_t in, int64_t out, Span window, Rule rule, bool small) {
  std::vector<int64_t> pixels;
  const double step = static_cast<double>(in) / static_cast<double>(out);
  const float scale = static_cast<float>(in) / static_cast<float>(out);
  double sum = step * 0.5;
  for (int64_t output = 0; output < window.end; ++output, sum += step) {
    if (output < window.begin) continue;
    double position = sum;
    if (rule == Rule::kTorchvision) {
      const float center = static_cast<float>(output) + 0.5f;
      const float pixel =
          small ? center * scale : std::max(std::fma(center, scale, -0.5f), 0.0f) + 0.5f;
      position = std::floor(pixel);
    }
    pixels.push_back(std::min(static_cast<int64_t>(position), in - 1));
  }
  return pixels;
}

}  // namespace packhorse::image
