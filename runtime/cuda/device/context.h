// A CUDA device with a stream of its own. Whatever it is asked to do runs on that stream, in order.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "cuda/device/io.h"
#include "cuda/device/memory.h"
#include "cuda/device/stream.h"
#include "ops/device_context.h"

namespace packhorse::cuda {

class CudaContext final : public DeviceContext {
 public:
  /// `caps`: those of the device (device_caps). `urgent`: see Stream.
  CudaContext(int device, const DeviceCaps& caps, bool urgent)
      : device_(device), stream_(urgent), kernels_{stream_, caps} {}

  Device device() const override { return {DeviceType::kCuda, device_}; }
  std::unique_ptr<DeviceMemory> allocate(size_t bytes) override;
  void upload(void* device_to, const void* host_from, size_t bytes) override;
  void download(void* host_to, const void* device_from, size_t bytes) override;
  void copy(std::span<const DeviceCopy> copies) override;
  size_t free_bytes() const override;
  void drop_downloads() noexcept override;
  std::unique_ptr<UploadBuffer> make_upload_buffer(void* device_to, size_t bytes) override;
  std::unique_ptr<InputUpload> make_input_upload(void* device_to, size_t bytes) override;
  std::unique_ptr<HostDeviceRing> make_ring(void* inputs, size_t input_bytes, const void* results,
                                            size_t result_bytes) override;
  bool asynchronous() const override { return true; }
  void synchronize() override;
  // Measured on an H200: 600 trillion operations a second and 4.1 TB read. Others have a similar
  // balance.
  int64_t balanced_rows() const override { return 160; }
  std::vector<GraphBounds> graph_bounds(int64_t max_tokens, int64_t max_seqlen) const override;
  std::unique_ptr<DeviceGraph> record(const std::function<void()>& work) override;
  double elapsed_ms(const std::function<void()>& work) override;
  DeviceIo* io() override { return &io_; }

  int index() const { return device_; }
  const KernelStream& stream() const { return kernels_; }

  /// Copies `bytes` of host memory into slots of the upload ring, one after the other, and calls
  /// send(slot, offset, size) for each: that must ask the stream to read the slot.
  template <class Send>
  void stage(const void* host_from, size_t bytes, Send send) {
    for (size_t offset = 0; offset < bytes; offset += UploadRing::kSlotBytes) {
      const size_t size = std::min(bytes - offset, UploadRing::kSlotBytes);
      void* slot = uploads_.acquire();
      std::memcpy(slot, static_cast<const unsigned char*>(host_from) + offset, size);
      send(slot, offset, size);
      uploads_.release(stream_);
    }
  }

 private:
  int device_;
  bool caller_is_read_ = false;  // the stream may still read memory of a caller
  UploadRing uploads_;
  DownloadBuffer downloads_;
  Stream stream_;  // destroyed before the buffers above, after waiting for work that uses them
  KernelStream kernels_;  // the stream above
  CudaDeviceIo io_{device_, stream_};
};

}  // namespace packhorse::cuda
