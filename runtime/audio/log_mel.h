// Speech made the input of a model: logarithms of the powers in bands of the mel scale.
#pragma once

#include <cstdint>
#include <span>

#include "packhorse/export.h"

namespace packhorse::audio {

inline constexpr int64_t kSampleRate = 16000;  // samples a second that the bands are made for
inline constexpr int64_t kHop = 160;           // samples from frame to frame

/// Numbers that stand behind the last sample. kReflect: the samples before it, backwards, as
/// centred transforms have them. kSilence: zeros, as of a file that goes on in silence. Before the
/// first sample there are always those behind it, backwards.
enum class End : uint8_t { kReflect, kSilence };

struct LogMelArgs {
  std::span<const float> samples;  // mono, at kSampleRate; reflected: at least 201 of them
  int64_t num_mels = 80;           // bands, 1 to 256
  End end = End::kReflect;
  float* out = nullptr;  // [frames_of(samples), num_mels]
};

/// Frames of so many samples: one for each whole hop.
constexpr int64_t frames_of(int64_t samples) { return samples / kHop; }

/// Writes (max(l, m - 8) + 4) / 4 of each frame and band. l = log10(max(1e-10, power)), where
/// powers are those of 400 samples around the frame's place by Hann's window, weighted by triangles
/// between 0 and 8000 Hz on Slaney's mel scale (Slaney 1998, Auditory Toolbox), each of area 1; and
/// m is the largest l of all frames. Computed in float64 (Radford et al. 2022, arXiv 2212.04356).
///
/// Frames are spread over `threads` threads of the pool that all share (0: one for each core).
/// Throws InvalidArgument for too few samples, and for one that is not finite or beyond 2^31,
/// naming it.
PACKHORSE_API void log_mel(const LogMelArgs& args, int threads);

// The parts of it that do not depend on the device.
/// Throws as log_mel does.
void check_log_mel(const LogMelArgs& args);
/// Frames that may have the largest l: behind the last that is written, those that hear samples
/// before the silence.
int64_t heard_frames(const LogMelArgs& args);
/// Writes the samples that frames [first, first + frames) hear, also those before the audio's
/// first and behind its last: [kHop * (frames - 1) + kWindow] numbers.
void copy_heard(const LogMelArgs& args, int64_t first, int64_t frames, float* to);
/// Replaces each l by (max(l, largest - 8) + 4) / 4.
void scale_logs(std::span<float> logs, double largest);

}  // namespace packhorse::audio
