// Slots of page-locked memory, and an event behind each round.
//
// The results of a round are copied by the launch that copies the inputs of the next one, which
// mostly follows at once: a launch takes the host a few microseconds, and the device, too. Where a
// round is waited for before the next one begins, its results have a launch of their own.
//
// Copies are not nodes of a step's graph: these take less time of the host, but steps on the
// device take some 50 us longer (docs/developer/notebook/cuda_generation.md).
#include "cuda/device/host_device_ring.h"

#include <array>

#include "cuda/device/check.h"
#include "cuda/device/memory.h"
#include "cuda/device/small_copy.h"
#include "cuda/device/stream.h"

namespace packhorse::cuda {
namespace {

class CudaHostDeviceRing final : public HostDeviceRing {
 public:
  CudaHostDeviceRing(int device, cudaStream_t stream, void* inputs, size_t input_bytes,
                     const void* results, size_t result_bytes)
      : device_(device), stream_(stream), inputs_(inputs), results_(results) {
    for (auto& slot : slots_) slot = std::make_unique<Slot>(input_bytes, result_bytes);
  }
  ~CudaHostDeviceRing() override { drop(); }

  void* acquire() override {
    Slot& next = this->next();
    if (next.used) {  // its last round was forgotten, and may still run
      const DeviceGuard guard(device_);
      CUDA_CHECK(cudaStreamSynchronize(stream_));
      next.used = false;
    }
    return next.inputs.data();
  }
  void send(size_t bytes) override {
    const DeviceGuard guard(device_);
    Slot& next = this->next();
    next.used = true;
    copy({inputs_, next.inputs.data(), bytes});
  }
  void fetch(size_t bytes) override {
    owed_ = &next();
    owed_bytes_ = bytes;
    ++under_way_;
  }
  const void* wait() override {
    const DeviceGuard guard(device_);
    Slot& oldest = *slots_[oldest_];
    if (owed_ == &oldest) copy({});
    CUDA_CHECK(cudaEventSynchronize(oldest.done));
    oldest.used = false;
    oldest_ = (oldest_ + 1) % kSlots;
    --under_way_;
    return oldest.results.data();
  }
  // Errors are ignored: this runs while another error is being reported, or at the end.
  void drop() noexcept override {
    static_cast<void>(cudaStreamSynchronize(stream_));
    for (auto& slot : slots_) slot->used = false;
    under_way_ = 0;
    owed_ = nullptr;
  }

 private:
  struct Slot {
    Slot(size_t input_bytes, size_t result_bytes) : inputs(input_bytes), results(result_bytes) {}
    PinnedMemory inputs;
    PinnedMemory results;
    Event done{cudaEventDisableTiming};
    bool used = false;  // the stream may read or write it
  };

  /// The slot that `acquire` gives, and has given since the last round began.
  Slot& next() { return *slots_[(oldest_ + under_way_) % kSlots]; }

  /// Copies `inputs`, and the results that are owed.
  void copy(const SmallCopy& inputs) {
    if (owed_ == nullptr) return copy_in_stream(inputs, {}, stream_);
    copy_in_stream(inputs, {owed_->results.data(), results_, owed_bytes_}, stream_);
    CUDA_CHECK(cudaEventRecord(owed_->done, stream_));
    owed_ = nullptr;
  }

  const int device_;
  const cudaStream_t stream_;
  void* const inputs_;
  const void* const results_;
  std::array<std::unique_ptr<Slot>, kSlots> slots_;
  size_t oldest_ = 0;
  size_t under_way_ = 0;
  Slot* owed_ = nullptr;  // the newest round under way, if its results are still to be copied
  size_t owed_bytes_ = 0;
};

}  // namespace

std::unique_ptr<HostDeviceRing> make_ring(int device, cudaStream_t stream, void* inputs,
                                          size_t input_bytes, const void* results,
                                          size_t result_bytes) {
  const DeviceGuard guard(device);
  return std::make_unique<CudaHostDeviceRing>(device, stream, inputs, input_bytes, results,
                                              result_bytes);
}

}  // namespace packhorse::cuda
