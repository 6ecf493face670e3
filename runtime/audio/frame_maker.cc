#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "audio/log_mel.h"
#include "core/format.h"
#include "ops/backend.h"
#include "packhorse/audio.h"
#include "packhorse/error.h"

namespace packhorse::audio {
namespace {

// Checks all audios before frames are made of the first.
void check_all(std::span<const LogMelArgs> audios, int64_t num_mels) {
  for (size_t i = 0; i < audios.size(); ++i) {
    if (audios[i].num_mels != num_mels) {
      throw InvalidArgument(concat("num_mels is ", audios[i].num_mels, ", expected ", num_mels));
    }
    try {
      check_log_mel(audios[i]);
    } catch (const InvalidArgument& error) {
      if (audios.size() == 1) throw;
      throw InvalidArgument(concat("audio[", i, "]: ", error.what()));
    }
  }
}

class CpuFrameMaker final : public FrameMaker {
 public:
  CpuFrameMaker(int64_t num_mels, int threads) : num_mels_(num_mels), threads_(threads) {}

  void make(std::span<const LogMelArgs> audios) override {
    check_all(audios, num_mels_);
    for (const LogMelArgs& audio : audios) log_mel(audio, threads_);
  }

 private:
  int64_t num_mels_;
  int threads_;
};

constexpr int64_t kRows = 16384;  // frames of a launch: five windows of 30 seconds
// The samples of a piece reach into two more hops than it has frames. Frames that begin in these
// hear the next piece, too, and mean nothing.
constexpr int64_t kMargin = 2;
static_assert(kFrameHop == kHop && kFrameWindow <= (kMargin + 1) * kHop);

class DeviceFrameMaker final : public FrameMaker {
 public:
  DeviceFrameMaker(Device device, int64_t num_mels)
      : num_mels_(num_mels),
        backend_(make_backend(device, {.urgent = true})),
        samples_(backend_.device->allocate(kSampleBytes)),
        results_(backend_.device->allocate(result_bytes(kRows))),
        ring_(backend_.device->make_ring(samples_->data(), kSampleBytes, results_->data(),
                                         result_bytes(kRows))) {}

  void make(std::span<const LogMelArgs> audios) override {
    check_all(audios, num_mels_);
    const std::scoped_lock lock(mutex_);
    audios_ = audios;
    largest_.assign(audios.size(), -INFINITY);
    audio_ = 0;
    frame_ = 0;
    rounds_.clear();
    try {
      while (true) {
        const bool more = rounds_.size() < HostDeviceRing::kSlots && begin_round();
        if (more) continue;
        if (rounds_.empty()) break;
        end_round();
      }
    } catch (...) {
      ring_->drop();
      throw;
    }
  }

 private:
  static constexpr size_t kSampleBytes =
      sizeof(float) * static_cast<size_t>(kHop * (kRows + kMargin) + kHop);

  /// Frames of an audio that are made in rows from `row` on.
  struct Piece {
    size_t audio = 0;
    int64_t frame = 0;
    int64_t frames = 0;
    int64_t row = 0;
  };
  using Round = std::vector<Piece>;

  /// Results are the largest number of each row, then the rows.
  size_t result_bytes(int64_t rows) const {
    return sizeof(float) * static_cast<size_t>(kRows + rows * num_mels_);
  }

  /// Hands the next pieces to the device. Returns false where there are none.
  bool begin_round() {
    Round round;
    int64_t row = 0;
    float* to = nullptr;
    for (; audio_ < audios_.size() && row + kMargin < kRows; frame_ = 0, ++audio_) {
      const LogMelArgs& audio = audios_[audio_];
      const int64_t left = frames_of(std::ssize(audio.samples)) > 0 ? heard_frames(audio) : 0;
      const int64_t frames = std::min(left - frame_, kRows - kMargin - row);
      if (frames > 0) {
        if (to == nullptr) to = static_cast<float*>(ring_->acquire());
        copy_heard(audio, frame_, frames, to + row * kHop);
        round.push_back({audio_, frame_, frames, row});
        row += frames + kMargin;
      }
      if (frame_ + frames < left) {
        frame_ += frames;
        break;
      }
    }
    if (round.empty()) return false;
    const int64_t rows = row - kMargin;
    ring_->send(sizeof(float) * static_cast<size_t>(kHop * (rows + kMargin)));
    auto* const largest = static_cast<float*>(results_->data());
    backend_.ops->mel_logs({.samples = static_cast<const float*>(samples_->data()),
                            .out = {largest + kRows, DType::kFloat32, rows, num_mels_},
                            .largest = largest});
    ring_->fetch(result_bytes(rows));
    rounds_.push_back(std::move(round));
    return true;
  }

  /// Takes the results of the oldest round.
  void end_round() {
    const auto* const largest = static_cast<const float*>(ring_->wait());
    for (const Piece& piece : rounds_.front()) {
      const LogMelArgs& audio = audios_[piece.audio];
      float& most = largest_[piece.audio];
      const float* const of = largest + piece.row;
      most = std::max(most, *std::max_element(of, of + piece.frames));
      const int64_t frames = frames_of(std::ssize(audio.samples));
      const int64_t written = std::clamp<int64_t>(frames - piece.frame, 0, piece.frames);
      std::copy_n(largest + kRows + piece.row * num_mels_, written * num_mels_,
                  audio.out + piece.frame * num_mels_);
      if (piece.frame + piece.frames < heard_frames(audio)) continue;
      scale_logs({audio.out, static_cast<size_t>(frames * num_mels_)}, most);
    }
    rounds_.erase(rounds_.begin());
  }

  int64_t num_mels_;
  Backend backend_;
  std::unique_ptr<DeviceMemory> samples_;
  std::unique_ptr<DeviceMemory> results_;
  std::unique_ptr<HostDeviceRing> ring_;
  std::mutex mutex_;
  // The call that has its turn.
  std::span<const LogMelArgs> audios_;
  std::vector<float> largest_;  // number of each audio so far
  size_t audio_ = 0;            // the next frame to hand out
  int64_t frame_ = 0;
  std::vector<Round> rounds_;  // under way, the oldest first
};

}  // namespace

std::unique_ptr<FrameMaker> make_frame_maker(Device device, int64_t num_mels, int threads) {
  if (num_mels < 1 || num_mels > kMostMels) {
    throw InvalidArgument(
        concat("num_mels is ", num_mels, ", expected 1 to ", kMostMels, " bands"));
  }
  if (device.type == DeviceType::kCpu) return std::make_unique<CpuFrameMaker>(num_mels, threads);
  return std::make_unique<DeviceFrameMaker>(device, num_mels);
}

}  // namespace packhorse::audio
