#include "audio/log_mel.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <vector>

#include "audio/fourier.h"
#include "core/format.h"
#include "core/math.h"
#include "cpu/threads/shared_pools.h"
#include "ops/args/audio.h"
#include "packhorse/error.h"

namespace packhorse::audio {
namespace {

constexpr double kFloor = 1e-10;  // least power
constexpr double kRange = 8;      // decades below the largest power that are kept
constexpr int64_t kBlock = 64;    // frames of a task

// One band: weights of neighbouring bins.
struct Band {
  size_t first = 0;
  std::vector<double> weights;
};

// Slaney's scale is linear up to 1000 Hz, and logarithmic above.
constexpr double kLinearStep = 200.0 / 3;  // Hz
constexpr double kBreak = 1000;            // Hz
double log_step() { return std::log(6.4) / 27; }

double hertz_of(double mel) {
  const double at_break = kBreak / kLinearStep;
  return mel < at_break ? mel * kLinearStep : kBreak * std::exp(log_step() * (mel - at_break));
}

double mel_of(double hertz) {
  return hertz < kBreak ? hertz / kLinearStep
                        : kBreak / kLinearStep + std::log(hertz / kBreak) / log_step();
}

std::vector<Band> make_bands(int64_t count) {
  const double nyquist = static_cast<double>(kSampleRate) / 2;
  std::vector<double> corners;
  for (int64_t i = 0; i < count + 2; ++i) {
    corners.push_back(
        hertz_of(mel_of(nyquist) * static_cast<double>(i) / static_cast<double>(count + 1)));
  }
  std::vector<Band> bands(static_cast<size_t>(count));
  for (size_t band = 0; band < bands.size(); ++band) {
    const double low = corners[band];
    const double middle = corners[band + 1];
    const double high = corners[band + 2];
    Band& made = bands[band];
    for (size_t bin = 0; bin < kBins; ++bin) {
      const double hertz = nyquist * static_cast<double>(bin) / (kBins - 1);
      const double weight =
          std::min((hertz - low) / (middle - low), (high - hertz) / (high - middle));
      if (weight <= 0) continue;
      if (made.weights.empty()) made.first = bin;
      made.weights.push_back(weight * 2 / (high - low));
    }
  }
  return bands;
}

const std::array<double, kWindow>& hann() {
  static const std::array<double, kWindow> window = [] {
    std::array<double, kWindow> made;
    for (size_t i = 0; i < made.size(); ++i) {
      made[i] =
          0.5 - 0.5 * std::cos(2 * std::numbers::pi * static_cast<double>(i) / double{kWindow});
    }
    return made;
  }();
  return window;
}

// The sample at a place that may lie before the first or behind the last.
float sample_at(const LogMelArgs& args, int64_t place) {
  const auto size = std::ssize(args.samples);
  if (place < 0) place = -place;
  if (place >= size && args.end == End::kReflect) place = 2 * (size - 1) - place;
  return place >= 0 && place < size ? args.samples[static_cast<size_t>(place)] : 0.0f;
}

struct Scratch {
  std::array<Lanes, kWindow> x;
  std::array<Lanes, kBins> powers;
  FourierScratch fourier;
  double largest = -INFINITY;
};

// Makes logarithms of up to kLanes frames from `frame` on; those from `end` on are not written.
void make_frames(const LogMelArgs& args, const std::vector<Band>& bands, int64_t frame, int64_t end,
                 Scratch& scratch, float* out) {
  const std::array<double, kWindow>& window = hann();
  const auto size = std::ssize(args.samples);
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    const int64_t begin = (frame + lane) * kHop - kWindow / 2;
    const bool inside = begin >= 0 && begin + kWindow <= size;
    for (int64_t i = 0; i < kWindow; ++i) {
      const double sample = double{inside ? args.samples[static_cast<size_t>(begin + i)]
                                          : sample_at(args, begin + i)};
      const auto at = static_cast<size_t>(i);
      scratch.x[at][static_cast<size_t>(lane)] = sample * window[at];
    }
  }
  power_spectrum(scratch.x, scratch.fourier, scratch.powers);
  for (size_t band = 0; band < bands.size(); ++band) {
    Lanes sums = {};
    const Band& of = bands[band];
    for (size_t i = 0; i < of.weights.size(); ++i) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        sums[lane] += of.weights[i] * scratch.powers[of.first + i][lane];
      }
    }
    for (int64_t lane = 0; lane < kLanes && frame + lane < end; ++lane) {
      const double value = std::log10(std::max(kFloor, sums[static_cast<size_t>(lane)]));
      scratch.largest = std::max(scratch.largest, value);
      if (out != nullptr) {
        out[lane * std::ssize(bands) + static_cast<int64_t>(band)] = static_cast<float>(value);
      }
    }
  }
}

}  // namespace

void check_log_mel(const LogMelArgs& args) {
  const auto size = std::ssize(args.samples);
  if (args.num_mels < 1 || args.num_mels > kMostMels) {
    throw InvalidArgument(
        concat("num_mels is ", args.num_mels, ", expected 1 to ", kMostMels, " bands"));
  }
  const int64_t least = kWindow / 2 + 1;
  if (size < least && (args.end == End::kReflect && size > 0)) {
    throw InvalidArgument(concat("the audio has ", size, " samples, expected at least ", least));
  }
  constexpr float kMost = 2147483648.0f;
  for (size_t i = 0; i < args.samples.size(); ++i) {
    if (std::abs(args.samples[i]) <= kMost) continue;  // NaN is not
    throw InvalidArgument(concat("sample ", i, " is ", args.samples[i],
                                 ", expected a finite number of at most 2^31"));
  }
}

int64_t heard_frames(const LogMelArgs& args) {
  const auto size = std::ssize(args.samples);
  return args.end == End::kSilence ? ceil_div(size + kWindow / 2, kHop) : frames_of(size);
}

void copy_heard(const LogMelArgs& args, int64_t first, int64_t frames, float* to) {
  const int64_t begin = first * kHop - kWindow / 2;
  const int64_t count = (frames - 1) * kHop + kWindow;
  const int64_t inside = std::clamp<int64_t>(-begin, 0, count);
  const int64_t behind = std::clamp<int64_t>(std::ssize(args.samples) - begin, inside, count);
  for (int64_t i = 0; i < inside; ++i) to[i] = sample_at(args, begin + i);
  std::copy_n(args.samples.data() + begin + inside, behind - inside, to + inside);
  for (int64_t i = behind; i < count; ++i) to[i] = sample_at(args, begin + i);
}

void scale_logs(std::span<float> logs, double largest) {
  const auto least = static_cast<float>(largest - kRange);
  for (float& log : logs) log = (std::max(log, least) + 4) / 4;
}

void log_mel(const LogMelArgs& args, int threads) {
  check_log_mel(args);
  const auto size = std::ssize(args.samples);
  const int64_t frames = frames_of(size);
  if (frames == 0) return;
  const std::vector<Band> bands = make_bands(args.num_mels);
  const auto pool = cpu::shared_pool(threads, false);
  std::vector<Scratch> scratches(static_cast<size_t>(pool->threads()));
  const int64_t heard = heard_frames(args);
  pool->parallel_for(ceil_div(heard, kBlock), [&](int64_t block, int worker) {
    Scratch& scratch = scratches[static_cast<size_t>(worker)];
    const int64_t end = std::min((block + 1) * kBlock, heard);
    for (int64_t frame = block * kBlock; frame < end; frame += kLanes) {
      const int64_t written = std::clamp<int64_t>(frames - frame, 0, kLanes);
      if (written > 0) {
        make_frames(args, bands, frame, std::min(frame + written, end), scratch,
                    args.out + frame * args.num_mels);
      }
      if (frame + written < std::min(frame + kLanes, end)) {
        make_frames(args, bands, frame + written, end, scratch, nullptr);
      }
    }
  });
  double largest = -INFINITY;
  for (const Scratch& scratch : scratches) largest = std::max(largest, scratch.largest);
  const int64_t count = frames * args.num_mels;
  pool->parallel_for(ceil_div(frames, kBlock), [&](int64_t block, int) {
    const int64_t begin = block * kBlock * args.num_mels;
    const int64_t end = std::min(begin + kBlock * args.num_mels, count);
    scale_logs({args.out + begin, static_cast<size_t>(end - begin)}, largest);
  });
}

}  // namespace packhorse::audio
