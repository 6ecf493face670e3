// The CUDA device behind DeviceContext: memory, transfers, graphs and timing on one stream.
#include "cuda/device/context.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "cuda/device/check.h"
#include "cuda/device/device_copy.h"
#include "cuda/device/graph.h"
#include "cuda/device/graph_bounds.h"
#include "cuda/device/host_device_ring.h"
#include "cuda/device/input_upload.h"
#include "cuda/device/small_copy.h"

namespace packhorse::cuda {
namespace {

// An upload buffer of several slots of page-locked memory that are used in turn, so that the host
// writes one slot while the device may still read the others. The number of slots is large enough
// that the host can run well ahead, and smaller where slots are large.
class CudaUploadBuffer final : public UploadBuffer {
 public:
  CudaUploadBuffer(const CudaContext& context, void* to, size_t bytes)
      : device_(context.index()), stream_(context.stream()), to_(to) {
    const size_t count = std::clamp(kSlotsBytes / std::max<size_t>(bytes, 1), kFewest, kMost);
    for (size_t i = 0; i < count; ++i) slots_.push_back(std::make_unique<Slot>(bytes));
  }
  // The stream must be done with the slots before they are freed.
  ~CudaUploadBuffer() override {
    for (const auto& slot : slots_) cudaEventSynchronize(slot->read);
  }

  void* acquire() override {
    const DeviceGuard guard(device_);
    next_ = (next_ + 1) % slots_.size();
    CUDA_CHECK(cudaEventSynchronize(slots_[next_]->read));
    return slots_[next_]->memory.data();
  }
  void send(size_t bytes) override {
    const DeviceGuard guard(device_);
    const Slot& slot = *slots_[next_];
    copy_in_stream({to_, slot.memory.data(), bytes}, {}, stream_);
    CUDA_CHECK(cudaEventRecord(slot.read, stream_));
  }

 private:
  static constexpr size_t kSlotsBytes = size_t{8} << 20;
  static constexpr size_t kFewest = 2;
  static constexpr size_t kMost = 8;
  struct Slot {
    explicit Slot(size_t bytes) : memory(bytes), read(cudaEventDisableTiming) {}
    PinnedMemory memory;
    Event read;
  };
  int device_;
  cudaStream_t stream_;
  void* to_;
  std::vector<std::unique_ptr<Slot>> slots_;
  size_t next_ = 0;
};

}  // namespace

std::unique_ptr<DeviceMemory> CudaContext::allocate(size_t bytes) {
  return std::make_unique<CudaMemory>(device_, bytes);
}

void CudaContext::upload(void* device_to, const void* host_from, size_t bytes) {
  const DeviceGuard guard(device_);
  auto* to = static_cast<unsigned char*>(device_to);
  stage(host_from, bytes, [&](const void* staged, size_t offset, size_t size) {
    CUDA_CHECK(cudaMemcpyAsync(to + offset, staged, size, cudaMemcpyHostToDevice, stream_));
  });
}

void CudaContext::download(void* host_to, const void* device_from, size_t bytes) {
  if (bytes == 0) return;
  const DeviceGuard guard(device_);
  downloads_.download(host_to, device_from, bytes, stream_);
}

// Errors are ignored: this runs while another error is being reported.
void CudaContext::drop_downloads() noexcept {
  if (caller_is_read_) static_cast<void>(cudaStreamSynchronize(stream_));
  caller_is_read_ = false;
  downloads_.drop(stream_);
}

void CudaContext::copy(std::span<const DeviceCopy> copies) {
  if (copies.empty()) return;
  const DeviceGuard guard(device_);
  copy_on_device(copies, stream_);
}

size_t CudaContext::free_bytes() const {
  const DeviceGuard guard(device_);
  size_t free = 0;
  size_t total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return free;
}

std::unique_ptr<UploadBuffer> CudaContext::make_upload_buffer(void* device_to, size_t bytes) {
  const DeviceGuard guard(device_);
  return std::make_unique<CudaUploadBuffer>(*this, device_to, bytes);
}

std::unique_ptr<InputUpload> CudaContext::make_input_upload(void* device_to, size_t bytes) {
  const DeviceGuard guard(device_);
  return cuda::make_input_upload(device_, stream_, device_to, bytes, caller_is_read_);
}

std::unique_ptr<HostDeviceRing> CudaContext::make_ring(void* inputs, size_t input_bytes,
                                                       const void* results, size_t result_bytes) {
  return cuda::make_ring(device_, stream_, inputs, input_bytes, results, result_bytes);
}

void CudaContext::synchronize() {
  const DeviceGuard guard(device_);
  const cudaError_t error = cudaStreamSynchronize(stream_);
  caller_is_read_ = false;
  downloads_.finish(error == cudaSuccess);
  CUDA_CHECK(error);
}

std::vector<GraphBounds> CudaContext::graph_bounds(int64_t max_tokens, int64_t max_seqlen) const {
  return cuda::graph_bounds(max_tokens, max_seqlen, kernels_.caps.wgmma);
}

std::unique_ptr<DeviceGraph> CudaContext::record(const std::function<void()>& work) {
  const DeviceGuard guard(device_);
  return capture_graph(stream_, work);
}

double CudaContext::elapsed_ms(const std::function<void()>& work) {
  const DeviceGuard guard(device_);
  const Event start;
  const Event end;
  CUDA_CHECK(cudaEventRecord(start, stream_));
  work();
  CUDA_CHECK(cudaEventRecord(end, stream_));
  synchronize();
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start, end));
  return milliseconds;
}

}  // namespace packhorse::cuda
