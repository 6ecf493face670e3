// The CPU as a device: its memory is the host's, its threads are a pool.
#pragma once

#include <memory>
#include <mutex>

#include "cpu/gemm.h"
#include "cpu/shared_pools.h"
#include "cpu/thread_pool.h"
#include "ops/backend.h"

namespace packhorse::cpu {

class CpuContext final : public DeviceContext {
 public:
  explicit CpuContext(const BackendOptions& options);

  Device device() const override { return {DeviceType::kCpu, 0}; }
  std::unique_ptr<DeviceMemory> allocate(size_t bytes) override;
  void upload(void* device_to, const void* host_from, size_t bytes) override;
  void download(void* host_to, const void* device_from, size_t bytes) override;
  std::unique_ptr<UploadBuffer> make_upload_buffer(void* device_to, size_t bytes) override;
  void synchronize() override {}
  void for_each(int64_t count, const std::function<void(int64_t)>& body) override;

  /// Throws RuntimeError unless this processor computes in `dtype`, or with weights of int8.
  void check_dtype(DType dtype) const;
  ThreadPool& pool() { return *pool_; }

  /// One op at a time: the kernels and oneDNN's scratch are used by one caller.
  class Use {
   public:
    explicit Use(CpuContext& context) : lock_(context.mutex_) {}

   private:
    std::lock_guard<std::mutex> lock_;
    OneThreadScope one_thread_;
  };

 private:
  const CpuFeatures features_;
  const std::shared_ptr<ThreadPool> pool_;
  std::mutex mutex_;
};

}  // namespace packhorse::cpu
