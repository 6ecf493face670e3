// Streams, events and memory for callers that work on the same device.
#include "cuda/device/io.h"

#include <utility>

#include "cuda/device/check.h"
#include "cuda/device/memory.h"

namespace packhorse::cuda {
namespace {

// DLPack's stream handles 1 and 2 mean the legacy and the per-thread default stream, as they do in
// CUDA.
cudaStream_t to_stream(StreamHandle handle) { return reinterpret_cast<cudaStream_t>(handle); }

class CudaEvent final : public DeviceEvent {
 public:
  CudaEvent(int device, std::shared_ptr<EventPool> pool)
      : device_(device), pool_(std::move(pool)), event_(pool_->take()) {}
  ~CudaEvent() override { pool_->put(std::move(event_)); }

  void record(StreamHandle stream) override {
    const DeviceGuard guard(device_);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    CUDA_CHECK(cudaStreamIsCapturing(to_stream(stream), &capture));
    if (capture != cudaStreamCaptureStatusNone) {
      throw RuntimeError("a stream that a CUDA graph is being captured from cannot take part");
    }
    CUDA_CHECK(cudaEventRecord(*event_, to_stream(stream)));
  }
  void make_wait(StreamHandle stream) override {
    const DeviceGuard guard(device_);
    CUDA_CHECK(cudaStreamWaitEvent(to_stream(stream), *event_, 0));
  }
  bool is_done() const override {
    const DeviceGuard guard(device_);
    const cudaError_t status = cudaEventQuery(*event_);
    if (status == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    CUDA_CHECK(status);
    return true;
  }
  void synchronize() override {
    const DeviceGuard guard(device_);
    CUDA_CHECK(cudaEventSynchronize(*event_));
  }

 private:
  int device_;
  std::shared_ptr<EventPool> pool_;
  std::unique_ptr<Event> event_;
};

// Memory that host and device see at the same address.
class SharedMemory final : public DeviceMemory {
 public:
  explicit SharedMemory(size_t bytes) : memory_(bytes) {
    data_ = memory_.data();
    bytes_ = bytes;
  }

 private:
  PinnedMemory memory_;
};

}  // namespace

std::unique_ptr<Event> EventPool::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return std::make_unique<Event>(cudaEventDisableTiming);
  std::unique_ptr<Event> event = std::move(free_.back());
  free_.pop_back();
  return event;
}

// An event can be used again at once: a stream that was told to wait for it waits for what it
// marked at that moment.
void EventPool::put(std::unique_ptr<Event> event) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(event));
}

std::unique_ptr<DeviceEvent> CudaDeviceIo::make_event() {
  const DeviceGuard guard(device_);
  return std::make_unique<CudaEvent>(device_, events_);
}

void CudaDeviceIo::synchronize_device() {
  const DeviceGuard guard(device_);
  CUDA_CHECK(cudaDeviceSynchronize());
}

std::unique_ptr<DeviceMemory> CudaDeviceIo::allocate_shared(size_t bytes) {
  const DeviceGuard guard(device_);
  return std::make_unique<SharedMemory>(bytes);
}

void CudaDeviceIo::check_pointer(const char* name, const void* data) const {
  const DeviceGuard guard(device_);
  cudaPointerAttributes attributes;
  CUDA_CHECK(cudaPointerGetAttributes(&attributes, data));
  if (attributes.type == cudaMemoryTypeManaged) return;
  if (attributes.type != cudaMemoryTypeDevice) {
    throw InvalidArgument(concat(name, " is host memory, expected memory of cuda:", device_));
  }
  if (attributes.device != device_) {
    throw InvalidArgument(
        concat(name, " lies on cuda:", attributes.device, ", expected cuda:", device_));
  }
}

void CudaDeviceIo::load_batch(const LoadBatchArgs& args) {
  const DeviceGuard guard(device_);
  launch_load_batch(args, stream_);
}

void CudaDeviceIo::load_floats(const void* from, DType dtype, int64_t count, float* to) {
  if (count == 0) return;
  const DeviceGuard guard(device_);
  if (dtype != DType::kFloat32) return launch_load_floats(from, dtype, count, to, stream_);
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_));
}

}  // namespace packhorse::cuda
