// Memory of a CUDA device, and page-locked host memory through which data goes to the device and
// back.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <vector>

#include "cuda/device/stream.h"
#include "ops/device_context.h"

namespace packhorse::cuda {

/// Makes a device the current one of the calling thread, and in its destructor the one that was
/// current before.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

/// Memory from one cudaMalloc. The constructor throws OutOfMemory, whose message says how much was
/// needed, how much is free, and what to lower.
class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory(int device, size_t bytes);
  ~CudaMemory() override;
};

/// Page-locked host memory, which kernels can read and write, too, at the same address.
class PinnedMemory {
 public:
  explicit PinnedMemory(size_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  unsigned char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  unsigned char* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Slots of page-locked memory for data on its way to the device. A slot is written again only
/// after the stream has read it. Since the caller's data is copied into a slot, the caller may
/// change or free it at once.
class UploadRing {
 public:
  static constexpr size_t kSlotBytes = size_t{1} << 20;
  static constexpr int kSlots = 8;

  /// Returns the next slot, after waiting until the stream has read what was in it.
  void* acquire();
  /// Ends the use of the slot: the stream has been asked for everything that reads it.
  void release(cudaStream_t stream);

 private:
  struct ReadEvent : Event {
    ReadEvent() : Event(cudaEventDisableTiming) {}
  };
  PinnedMemory memory_{kSlots * kSlotBytes};
  std::array<ReadEvent, kSlots> read_;
  int next_ = 0;
};

/// Page-locked memory for data on its way back from the device. It is copied to the callers' memory
/// at the next synchronisation.
class DownloadBuffer {
 public:
  static constexpr size_t kBytes = size_t{4} << 20;

  /// Asks the stream to copy: into this buffer if there is room, otherwise straight to `host_to`,
  /// for which the host waits.
  void download(void* host_to, const void* device_from, size_t bytes, cudaStream_t stream);
  /// Copies everything to the callers' memory, or drops it where `deliver` is false. Called after
  /// the stream was synchronised.
  void finish(bool deliver);
  /// Drops everything. If `stream` may still write to a caller's memory, it waits for the stream
  /// first.
  void drop(cudaStream_t stream) noexcept;

 private:
  struct Pending {
    void* to;
    size_t offset;
    size_t bytes;
  };
  PinnedMemory memory_{kBytes};
  size_t used_ = 0;
  bool straight_ = false;  // the stream may still write to a caller's memory
  std::vector<Pending> pending_;
};

}  // namespace packhorse::cuda
