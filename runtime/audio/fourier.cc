#include "audio/fourier.h"

#include <cmath>
#include <numbers>
#include <utility>

namespace packhorse::audio {
namespace {

constexpr int kHalf = kWindow / 2;

struct Root {
  double re = 0;
  double im = 0;
};

// exp(-2 pi i k / 400).
const std::array<Root, kWindow>& roots() {
  static const std::array<Root, kWindow> all = [] {
    std::array<Root, kWindow> made;
    for (int k = 0; k < kWindow; ++k) {
      const double angle = -2 * std::numbers::pi * k / kWindow;
      made[static_cast<size_t>(k)] = {std::cos(angle), std::sin(angle)};
    }
    return made;
  }();
  return all;
}

// A place in a buffer; all are below kWindow.
constexpr size_t index(int place) { return static_cast<size_t>(place); }

// One stage of Stockham's form of the transform: sub-transforms of length `length` become ones of
// `length` * Radix. Complex number i of a buffer is its elements 2 i and 2 i + 1.
template <int Radix>
void stage(int length, const std::array<Lanes, kWindow>& from, std::array<Lanes, kWindow>& to) {
  const int groups = kHalf / (length * Radix);
  const std::array<Root, kWindow>& root = roots();
  std::array<Lanes, Radix> re;
  std::array<Lanes, Radix> im;
  for (int j = 0; j < length; ++j) {
    for (int g = 0; g < groups; ++g) {
      for (int r = 0; r < Radix; ++r) {
        // The input of this sub-transform, turned by its place.
        const size_t at = index(2 * (length * (g + groups * r) + j));
        const Root w = root[index(2 * groups * r * j % kWindow)];
        const size_t part = index(r);
        for (size_t lane = 0; lane < kLanes; ++lane) {
          const double a = from[at][lane];
          const double b = from[at + 1][lane];
          re[part][lane] = a * w.re - b * w.im;
          im[part][lane] = a * w.im + b * w.re;
        }
      }
      for (int k = 0; k < Radix; ++k) {
        const size_t at = index(2 * (length * (Radix * g + k) + j));
        Lanes sum_re = re[0];
        Lanes sum_im = im[0];
        for (int r = 1; r < Radix; ++r) {
          const Root w = root[index(kWindow / Radix * (k * r % Radix))];
          const size_t part = index(r);
          for (size_t lane = 0; lane < kLanes; ++lane) {
            sum_re[lane] += re[part][lane] * w.re - im[part][lane] * w.im;
            sum_im[lane] += re[part][lane] * w.im + im[part][lane] * w.re;
          }
        }
        to[at] = sum_re;
        to[at + 1] = sum_im;
      }
    }
  }
}

}  // namespace

void power_spectrum(const std::array<Lanes, kWindow>& x, FourierScratch& scratch,
                    std::array<Lanes, kBins>& powers) {
  std::array<Lanes, kWindow>& a = scratch.first;
  std::array<Lanes, kWindow>& b = scratch.second;
  stage<5>(1, x, a);
  stage<5>(5, a, b);
  stage<4>(25, b, a);
  stage<2>(100, a, b);
  const std::array<Root, kWindow>& root = roots();
  for (int k = 0; k < kBins; ++k) {
    const auto one = static_cast<size_t>(2 * (k % kHalf));
    const auto two = static_cast<size_t>(2 * ((kHalf - k) % kHalf));
    const Root w = root[static_cast<size_t>(k)];
    for (size_t lane = 0; lane < kLanes; ++lane) {
      // Transforms of the even and the odd numbers, of which the whole is made.
      const double even_re = 0.5 * (b[one][lane] + b[two][lane]);
      const double even_im = 0.5 * (b[one + 1][lane] - b[two + 1][lane]);
      const double odd_re = 0.5 * (b[one + 1][lane] + b[two + 1][lane]);
      const double odd_im = 0.5 * (b[two][lane] - b[one][lane]);
      const double re = even_re + w.re * odd_re - w.im * odd_im;
      const double im = even_im + w.re * odd_im + w.im * odd_re;
      powers[static_cast<size_t>(k)][lane] = re * re + im * im;
    }
  }
}

}  // namespace packhorse::audio
