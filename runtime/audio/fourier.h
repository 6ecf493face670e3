// The Fourier transform of real sequences of 400 numbers, as short-time transforms of speech need
// it, of several sequences at once.
#pragma once

#include <array>
#include <cstdint>

namespace packhorse::audio {

inline constexpr int kWindow = 400;            // samples of a sequence
inline constexpr int kBins = kWindow / 2 + 1;  // frequencies from 0 to half the rate
inline constexpr int kLanes = 4;               // sequences at once

/// One number of each sequence.
using Lanes = std::array<double, kLanes>;

struct FourierScratch {
  std::array<Lanes, kWindow> first;  // real and imaginary parts of 200 complex numbers
  std::array<Lanes, kWindow> second;
};

/// powers[k] = |sum over n of x[n] exp(-2 pi i k n / 400)|^2 in float64. Each sequence's result
/// depends on its own numbers alone. A complex transform of half the length (Cooley and Tukey 1965,
/// in factors 2, 4, 5, 5) of the pairs x[2 n] + i x[2 n + 1] is split by symmetry.
void power_spectrum(const std::array<Lanes, kWindow>& x, FourierScratch& scratch,
                    std::array<Lanes, kBins>& powers);

}  // namespace packhorse::audio
