// Memory of a CUDA device, and page-locked host memory through which data goes up and down.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <vector>

#include "cuda/stream.h"
#include "ops/device_context.h"

namespace packhorse::cuda {

/// Makes a device the calling thread's current one, and gives the thread its own back.
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

/// One cudaMalloc. Throws OutOfMemory naming what was needed, what is free and what to lower.
class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory(int device, size_t bytes);
  ~CudaMemory() override;
};

/// Page-locked host memory, which kernels can read and write at the same address.
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

/// Slots of page-locked memory for data on its way up. A slot is written again only when the stream
/// has read it, so the caller's memory is free as soon as it has been copied into one.
class UploadRing {
 public:
  static constexpr size_t kSlotBytes = size_t{1} << 20;
  static constexpr int kSlots = 8;

  /// The next slot, once the stream is done with it.
  void* acquire();
  /// What the stream has been asked so far reads the slot; nothing later does.
  void release(cudaStream_t stream);

 private:
  struct ReadEvent : Event {
    ReadEvent() : Event(cudaEventDisableTiming) {}
  };
  PinnedMemory memory_{kSlots * kSlotBytes};
  std::array<ReadEvent, kSlots> read_;
  int next_ = 0;
};

/// Page-locked memory for data on its way down, emptied into the callers' memory at the next
/// synchronisation.
class DownloadBuffer {
 public:
  static constexpr size_t kBytes = size_t{4} << 20;

  /// Asks the stream to copy; through here if there is room, else straight (which waits).
  void download(void* host_to, const void* device_from, size_t bytes, cudaStream_t stream);
  /// After the stream was synchronised: hands everything over. `deliver` false drops it.
  void finish(bool deliver);
  /// Forgets what was not handed over, once `stream` writes to no caller's memory any more.
  void drop(cudaStream_t stream) noexcept;

 private:
  struct Pending {
    void* to;
    size_t offset;
    size_t bytes;
  };
  PinnedMemory memory_{kBytes};
  size_t used_ = 0;
  bool straight_ = false;  // whether the stream may still write to memory of a caller
  std::vector<Pending> pending_;
};

}  // namespace packhorse::cuda
