// Streams and events of CUDA: classes that own one, and a stream as kernels are launched in it.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/device/caps.h"
#include "cuda/device/check.h"

namespace packhorse::cuda {

class Stream {
 public:
  Stream() : Stream(false) {}
  /// `urgent`: its kernels' blocks start ahead of those that other streams have waiting.
  explicit Stream(bool urgent) {
    int least = 0;
    int greatest = 0;
    if (urgent) CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest));
  }
  ~Stream() {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// A stream of any owner, and what kernels in it may use: the capabilities of its device.
struct KernelStream {
  cudaStream_t handle = nullptr;
  DeviceCaps caps;
  operator cudaStream_t() const { return handle; }
};

class Event {
 public:
  explicit Event(unsigned flags = cudaEventDefault) {
    CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags));
  }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace packhorse::cuda
