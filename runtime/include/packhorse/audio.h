// Audio around a model of speech: frames for GenerationSession::submit_features, and times of
// tokens from AlignmentWeights.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "packhorse/export.h"
#include "packhorse/types.h"

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

/// Makes what log_mel makes, to 1e-6. A CUDA device makes frames of several audios in one launch,
/// in a stream of its own that goes ahead of others: samples and frames pass through page-locked
/// memory that is allocated once, while the device computes those of another piece. A frame's bits
/// depend on its own samples and the largest number of its audio alone. Any thread may use one;
/// calls take turns.
class PACKHORSE_API FrameMaker {
 public:
  virtual ~FrameMaker() = default;
  /// Writes the frames of all audios. Throws InvalidArgument as log_mel does, with the number of
  /// the audio where there are several, and before anything is written.
  virtual void make(std::span<const LogMelArgs> audios) = 0;
};

/// `num_mels`: bands of all frames, 1 to 256. `threads`: of the CPU, 0: one for each core. Throws
/// InvalidArgument, OutOfMemory, and RuntimeError where there is no such device.
PACKHORSE_API std::unique_ptr<FrameMaker> make_frame_maker(Device device, int64_t num_mels,
                                                           int threads);

/// Weights of cross attention. A frame here is one token of an encoder's source, a fiftieth of a
/// second.
struct TokenTimesArgs {
  std::span<const float> weights;  // [heads, tokens, frames]
  int64_t heads = 0;
  int64_t tokens = 0;
  int64_t frames = 0;
  int64_t first = 0;  // tokens [first, end) are those whose times are wanted
  int64_t end = 0;
  int64_t filter_width = 7;  // frames whose median counts, an odd number up to 63
};

/// The frame at which each of the tokens [first, end) begins; none falls.
///
/// As openai-whisper does it: weights of a head and a frame are normalised over all tokens to mean
/// 0 and deviation 1, a median filter goes over the frames, heads are averaged, and dynamic time
/// warping (Sakoe and Chiba 1978) finds the path through tokens and frames, both in order, along
/// which the sum is largest. Throws InvalidArgument for sizes that do not fit together.
PACKHORSE_API std::vector<int32_t> token_times(const TokenTimesArgs& args);

}  // namespace packhorse::audio
