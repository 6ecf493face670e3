// DeviceIo on a CUDA stream: batches that are in device memory already, results that stay there,
// and the streams and events that order them.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <vector>

#include "cuda/device/stream.h"
#include "ops/device_context.h"

namespace packhorse::cuda {

/// Checks a batch in device memory and copies it into the arena; see LoadBatchArgs.
void launch_load_batch(const LoadBatchArgs& args, cudaStream_t stream);

/// Copies numbers of 16 bits, float16 or bfloat16, as float32. `from` may have any alignment of its
/// dtype.
void launch_load_floats(const void* from, DType dtype, int64_t count, float* to,
                        cudaStream_t stream);

/// A pool of events without timing. A run needs several, and making one takes longer than using it
/// again.
class EventPool {
 public:
  std::unique_ptr<Event> take();
  void put(std::unique_ptr<Event> event);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Event>> free_;
};

class CudaDeviceIo final : public DeviceIo {
 public:
  CudaDeviceIo(int device, cudaStream_t stream) : device_(device), stream_(stream) {}

  StreamHandle stream() const override { return reinterpret_cast<StreamHandle>(stream_); }
  std::unique_ptr<DeviceEvent> make_event() override;
  void synchronize_device() override;
  std::unique_ptr<DeviceMemory> allocate_shared(size_t bytes) override;
  void check_pointer(const char* name, const void* data) const override;
  void load_batch(const LoadBatchArgs& args) override;
  void load_floats(const void* from, DType dtype, int64_t count, float* to) override;

 private:
  int device_;
  cudaStream_t stream_;
  std::shared_ptr<EventPool> events_ = std::make_shared<EventPool>();
};

}  // namespace packhorse::cuda
