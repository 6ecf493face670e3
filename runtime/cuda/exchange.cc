// Slots of page-locked memory, and an event behind each round.
//
// A recording has the addresses of one slot, so that host and device cannot disagree about which
// one a round has: the host launches the recording of the slot that it has filled.
#include "cuda/exchange.h"

#include <array>

#include "cuda/check.h"
#include "cuda/device_memory.h"
#include "cuda/small_copy.h"
#include "cuda/stream.h"

namespace packhorse::cuda {
namespace {

class CudaExchange final : public Exchange {
 public:
  CudaExchange(int device, cudaStream_t stream, void* inputs, size_t input_bytes,
               const void* results, size_t result_bytes)
      : device_(device),
        stream_(stream),
        inputs_(inputs),
        input_bytes_(input_bytes),
        results_(results) {
    for (auto& slot : slots_) slot = std::make_unique<Slot>(input_bytes, result_bytes);
    // A kernel is loaded when it is launched first, which must not be within a recording.
    *slots_[0]->size() = 0;
    record_send(0);
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }
  ~CudaExchange() override { drop(); }

  void* acquire() override {
    Slot& next = *slots_[slot()];
    if (next.used) {  // by a round that was forgotten
      const DeviceGuard guard(device_);
      CUDA_CHECK(cudaStreamSynchronize(stream_));
      next.used = false;
    }
    return next.inputs.data();
  }
  size_t slot() const override { return (oldest_ + under_way_) % kSlots; }
  void send(size_t bytes) override {
    const DeviceGuard guard(device_);
    Slot& next = *slots_[slot()];
    next.used = true;
    copy_in_stream(inputs_, next.inputs.data(), bytes, stream_);
  }
  void fetch(size_t bytes) override {
    const DeviceGuard guard(device_);
    record_fetch(slot(), bytes);
    begin_round();
  }
  void record_send(size_t slot) override {
    const Slot& sent = *slots_[slot];
    copy_counted_in_stream(inputs_, sent.inputs.data(), sent.size(), input_bytes_, stream_);
  }
  void record_fetch(size_t slot, size_t bytes) override {
    copy_behind_kernel(slots_[slot]->results.data(), results_, bytes, stream_);
  }
  void launch(Recording& recording, size_t bytes) override {
    const DeviceGuard guard(device_);
    Slot& next = *slots_[slot()];
    next.used = true;
    *next.size() = static_cast<unsigned>(bytes);
    recording.launch();
    begin_round();
  }
  const void* wait() override {
    const DeviceGuard guard(device_);
    Slot& oldest = *slots_[oldest_];
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
  }

 private:
  struct Slot {
    Slot(size_t input_bytes, size_t result_bytes)
        : inputs(input_bytes + sizeof(uint4)), results(result_bytes) {}
    /// Bytes of the inputs, behind them: what a recording sends.
    unsigned* size() const {
      return reinterpret_cast<unsigned*>(inputs.data() + inputs.bytes() - sizeof(uint4));
    }
    PinnedMemory inputs;
    PinnedMemory results;
    Event done{cudaEventDisableTiming};
    bool used = false;  // the stream may read or write it
  };

  void begin_round() {
    CUDA_CHECK(cudaEventRecord(slots_[slot()]->done, stream_));
    ++under_way_;
  }

  const int device_;
  const cudaStream_t stream_;
  void* const inputs_;
  const size_t input_bytes_;
  const void* const results_;
  std::array<std::unique_ptr<Slot>, kSlots> slots_;
  size_t oldest_ = 0;
  size_t under_way_ = 0;
};

}  // namespace

std::unique_ptr<Exchange> make_exchange(int device, cudaStream_t stream, void* inputs,
                                        size_t input_bytes, const void* results,
                                        size_t result_bytes) {
  const DeviceGuard guard(device);
  return std::make_unique<CudaExchange>(device, stream, inputs, input_bytes, results, result_bytes);
}

}  // namespace packhorse::cuda
