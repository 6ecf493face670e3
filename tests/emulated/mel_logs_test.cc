// Frames of samples against sums in float64: bands of any number, and one far below the others.
#include "cuda/audio/mel_logs.h"

#include <numbers>

#include "emulated_stream.h"
#include "emulated_test.h"

namespace packhorse::cuda {
namespace {

using namespace packhorse::emulated_test;

double hertz_of(double mel) {
  return mel < 15 ? mel * 200 / 3 : 1000 * std::pow(6.4, (mel - 15) / 27);
}

std::vector<double> expected_frame(const float* samples, int bands) {
  std::vector<double> powers;
  for (int bin = 0; bin <= 200; ++bin) {
    double re = 0;
    double im = 0;
    for (int i = 0; i < 400; ++i) {
      const double x = samples[i] * (0.5 - 0.5 * std::cos(2 * std::numbers::pi * i / 400));
      const double angle = 2 * std::numbers::pi * (i * bin % 400) / 400;
      re += x * std::cos(angle);
      im -= x * std::sin(angle);
    }
    powers.push_back(re * re + im * im);
  }
  const double highest = 15 + 27 * std::log(8.0) / std::log(6.4);
  std::vector<double> found;
  for (int band = 0; band < bands; ++band) {
    const auto corner = [&](int i) { return hertz_of(highest * (band + i) / (bands + 1)); };
    double sum = 0;
    for (int bin = 0; bin <= 200; ++bin) {
      const double rise = (40 * bin - corner(0)) / (corner(1) - corner(0));
      const double fall = (corner(2) - 40 * bin) / (corner(2) - corner(1));
      sum += std::max(0.0, std::min(rise, fall)) * powers[static_cast<size_t>(bin)];
    }
    found.push_back(std::log10(std::max(1e-10, sum * 2 / (corner(2) - corner(0)))));
  }
  return found;
}

void check(int rows, int bands, int stride, unsigned seed) {
  emulated::set_seed(seed);
  std::mt19937 random(seed);
  Array<float> samples(static_cast<size_t>(160 * (rows - 1) + 400));
  fill_normal(samples, random, 1e-4);
  // A tone that is 80 dB above the noise, and then silence.
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i] =
        i < 900 ? samples[i] + static_cast<float>(std::sin(0.4 * static_cast<double>(i))) : 0.0f;
  }
  Array<float> out(static_cast<size_t>(rows * stride));
  Array<float> largest(static_cast<size_t>(rows));
  TensorView view(out.data(), DType::kFloat32, rows, bands);
  view.row_stride = stride;
  launch_mel_logs({.samples = samples.data(), .out = view, .largest = largest.data()},
                  emulated_stream());
  for (int row = 0; row < rows; ++row) {
    const std::vector<double> wanted = expected_frame(samples.data() + 160 * row, bands);
    for (int band = 0; band < stride; ++band) {
      const float found = out[static_cast<size_t>(row * stride + band)];
      if (band >= bands) {
        CHECK(std::isnan(found));
      } else {
        CHECK_WITHIN(std::abs(found - wanted[static_cast<size_t>(band)]), 3e-6);
      }
    }
    const double most = *std::ranges::max_element(wanted);
    CHECK_WITHIN(std::abs(largest[static_cast<size_t>(row)] - most), 3e-6);
  }
}

}  // namespace

TEST(mel_logs) {
  for (unsigned seed = 0; seed < 3; ++seed) check(6, 80, 80, seed);
  check(1, 128, 130, 0);
  check(4, 1, 1, 0);
  check(5, 256, 256, 1);
}

}  // namespace packhorse::cuda
