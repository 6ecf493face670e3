// Tests frames of audio against NumPy's in float64, and the transform against its sum.
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numbers>
#include <random>
#include <vector>

#include "audio/fourier.h"
#include "audio/log_mel.h"
#include "cpu_test.h"
#include "packhorse/error.h"

namespace packhorse::audio {
namespace {

struct Golden {
  int64_t size;
  int64_t mels;
  End end;
  std::vector<double> values;  // each 13th band of all frames
};

const std::vector<Golden>& golden() {
  static const std::vector<Golden> all = {
#include "log_mel_golden.inc"
  };
  return all;
}

// Noise of a generator modulo 2^32 with a silence, as in tests/golden/make_log_mel_golden.py.
std::vector<float> noise(int64_t size) {
  std::vector<float> samples;
  uint32_t state = 1;
  for (int64_t i = 0; i < size; ++i) {
    state = 1664525 * state + 1013904223;
    const bool silent = i >= 1600 && i < 2400;
    samples.push_back(silent ? 0.0f
                             : static_cast<float>((static_cast<double>(state) - 0x1p31) * 0x1p-32));
  }
  return samples;
}

std::vector<float> frames(const std::vector<float>& samples, int64_t mels, End end, int threads) {
  const int64_t count = frames_of(std::ssize(samples)) * mels;
  std::vector<float> out(static_cast<size_t>(count) + 1, 77.0f);
  log_mel({.samples = samples, .num_mels = mels, .end = end, .out = out.data()}, threads);
  CHECK(out.back() == 77.0f);  // nothing is written behind the end
  out.pop_back();
  return out;
}

TEST(cpu_log_mel_equals_numpy) {
  for (const Golden& wanted : golden()) {
    const std::vector<float> found = frames(noise(wanted.size), wanted.mels, wanted.end, 1);
    size_t next = 0;
    for (int64_t frame = 0; frame < frames_of(wanted.size); ++frame) {
      for (int64_t band = 0; band < wanted.mels; band += 13) {
        const double value = double{found[static_cast<size_t>(frame * wanted.mels + band)]};
        CHECK(std::abs(value - wanted.values.at(next++)) < 1e-5);
      }
    }
    CHECK(next == wanted.values.size());
  }
}

TEST(cpu_log_mel_of_hardly_any_samples) {
  for (const int64_t size : {0, 1, 2, 159}) {
    CHECK(frames(noise(size), 80, End::kSilence, 1).empty());
  }
  CHECK(frames({}, 80, End::kReflect, 1).empty());
  for (const int64_t size : {1, 160, 200}) {
    CHECK_THROWS_WITH(frames(noise(size), 80, End::kReflect, 1), "expected at least 201");
  }
  // Silence is the least there is: log10(1e-10), which is also the largest.
  for (const float value : frames(std::vector<float>(321), 5, End::kSilence, 1)) {
    CHECK(value == -1.5f);
  }
}

TEST(cpu_log_mel_has_the_same_bits_on_any_threads) {
  for (const int64_t size : {161, 4801, 48000, 52345}) {
    for (const End end : {End::kReflect, End::kSilence}) {
      if (end == End::kReflect && size < 201) continue;
      const std::vector<float> samples = noise(size);
      const std::vector<float> one = frames(samples, 80, end, 1);
      CHECK(one == frames(samples, 80, end, 2));
      CHECK(one == frames(samples, 80, end, 3));
    }
  }
}

TEST(cpu_log_mel_refuses_what_is_no_sound) {
  const std::vector<float> samples = noise(400);
  CHECK_THROWS_WITH(frames(samples, 0, End::kSilence, 1), "num_mels is 0, expected 1 to 256");
  CHECK_THROWS_WITH(frames(samples, 257, End::kSilence, 1), "num_mels is 257");
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float value : {kInfinity, -kInfinity, std::nanf(""), 3e9f}) {
    std::vector<float> other = samples;
    other[399] = value;
    CHECK_THROWS_WITH(frames(other, 80, End::kSilence, 1), "sample 399 is");
  }
}

TEST(cpu_log_mel_transform_equals_the_sum) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> values(-1, 1);
  std::array<Lanes, kWindow> x;
  for (Lanes& lanes : x) {
    for (double& value : lanes) value = values(random);
  }
  const auto scratch = std::make_unique<FourierScratch>();
  std::array<Lanes, kBins> powers;
  power_spectrum(x, *scratch, powers);
  for (int k = 0; k < kBins; ++k) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      double re = 0;
      double im = 0;
      for (int n = 0; n < kWindow; ++n) {
        const double angle = 2 * std::numbers::pi * (k * n % kWindow) / kWindow;
        re += x[static_cast<size_t>(n)][lane] * std::cos(angle);
        im -= x[static_cast<size_t>(n)][lane] * std::sin(angle);
      }
      const double power = re * re + im * im;
      CHECK(std::abs(powers[static_cast<size_t>(k)][lane] - power) < 1e-9 * (1 + power));
    }
  }
}

}  // namespace
}  // namespace packhorse::audio
