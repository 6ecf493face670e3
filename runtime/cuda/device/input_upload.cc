// Arrays in page-locked memory are read by the device where they lie. Others go through a ring of
// page-locked slots: while the device reads one, several threads fill the next.
#include "cuda/device/input_upload.h"

#include <algorithm>
#include <array>
#include <thread>

#include "core/math.h"
#include "cuda/device/check.h"
#include "cuda/device/host_copier.h"
#include "cuda/device/memory.h"

namespace packhorse::cuda {
namespace {

bool is_page_locked(const void* address) {
  cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, address) != cudaSuccess) {
    cudaGetLastError();  // ordinary memory, which some drivers do not know
    return false;
  }
  return attributes.type == cudaMemoryTypeHost;
}

// Looks at both ends, since a caller may have locked a part of an array.
bool is_page_locked(const void* data, size_t bytes) {
  return is_page_locked(data) &&
         is_page_locked(static_cast<const unsigned char*>(data) + (bytes - 1));
}

class CudaInputUpload final : public InputUpload {
 public:
  CudaInputUpload(int device, cudaStream_t stream, void* to, size_t bytes, bool& caller_is_read)
      : device_(device),
        stream_(stream),
        to_(static_cast<unsigned char*>(to)),
        slot_bytes_(std::min(round_up(ceil_div(bytes, kSlots), kPage), kMostSlotBytes)),
        memory_(kSlots * slot_bytes_),
        caller_is_read_(caller_is_read),
        copier_(threads(slot_bytes_)) {}
  // The stream must be done with the slots before they are freed.
  ~CudaInputUpload() override {
    for (const ReadEvent& slot : read_) cudaEventSynchronize(slot);
  }

  void send(const void* host_from, size_t bytes, bool stays) override {
    if (bytes == 0) return;
    const DeviceGuard guard(device_);
    const auto* from = static_cast<const unsigned char*>(host_from);
    if (stays && is_page_locked(from, bytes)) {
      caller_is_read_ = true;
      return transfer(0, from, bytes);
    }
    for (size_t offset = 0; offset < bytes; offset += slot_bytes_) {
      const size_t size = std::min(bytes - offset, slot_bytes_);
      unsigned char* const slot = memory_.data() + next_ * slot_bytes_;
      CUDA_CHECK(cudaEventSynchronize(read_[next_]));
      copier_.copy(slot, from + offset, size);
      transfer(offset, slot, size);
      CUDA_CHECK(cudaEventRecord(read_[next_], stream_));
      next_ = (next_ + 1) % kSlots;
    }
  }

 private:
  static constexpr size_t kSlots = 4;
  static constexpr size_t kPage = 4096;
  static constexpr size_t kMostSlotBytes = size_t{2} << 20;

  struct ReadEvent : Event {
    ReadEvent() : Event(cudaEventDisableTiming) {}
  };

  // Threads that copy a slot. More than a few gain nothing: the bus is slower than their copies.
  static int threads(size_t slot_bytes) {
    constexpr unsigned kMost = 4;
    if (slot_bytes < kMostSlotBytes) return 1;
    return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, kMost));
  }

  void transfer(size_t offset, const void* from, size_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(to_ + offset, from, bytes, cudaMemcpyHostToDevice, stream_));
  }

  int device_;
  cudaStream_t stream_;
  unsigned char* to_;
  size_t slot_bytes_;
  PinnedMemory memory_;
  std::array<ReadEvent, kSlots> read_;
  size_t next_ = 0;
  bool& caller_is_read_;
  HostCopier copier_;
};

}  // namespace

std::unique_ptr<InputUpload> make_input_upload(int device, cudaStream_t stream, void* to,
                                               size_t bytes, bool& caller_is_read) {
  return std::make_unique<CudaInputUpload>(device, stream, to, bytes, caller_is_read);
}

}  // namespace packhorse::cuda
