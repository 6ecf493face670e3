// Frames of many audios at once, on any device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "audio/log_mel.h"
#include "packhorse/export.h"
#include "packhorse/types.h"

namespace packhorse::audio {

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

}  // namespace packhorse::audio
