// The parts of log_mel that do not depend on the device.
#pragma once

#include <cstdint>
#include <span>

#include "packhorse/audio.h"

namespace packhorse::audio {

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
