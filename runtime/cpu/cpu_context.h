// The CPU as a device. Its memory is host memory, and its threads are a pool.
#pragma once

#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "core/format.h"
#include "cpu/gemm/gemm.h"
#include "cpu/isa/processor.h"
#include "cpu/memory/host_memory.h"
#include "cpu/threads/one_thread.h"
#include "cpu/threads/shared_pools.h"
#include "cpu/threads/thread_pool.h"
#include "ops/backend.h"
#include "packhorse/error.h"

namespace packhorse::cpu {

/// An upload buffer that is the device memory itself, so that there is nothing to transfer.
class InPlaceUpload final : public UploadBuffer {
 public:
  explicit InPlaceUpload(void* to) : to_(to) {}
  void* acquire() override { return to_; }
  void send(size_t) override {}

 private:
  void* to_;
};

class HostInputUpload final : public InputUpload {
 public:
  explicit HostInputUpload(void* to) : to_(to) {}
  void send(const void* host_from, size_t bytes, bool) override {
    if (bytes > 0) std::memcpy(to_, host_from, bytes);
  }

 private:
  void* to_;
};

/// Inputs are written in place. Results are copied when they are asked for, so that later work may
/// overwrite the place.
class CpuHostDeviceRing final : public HostDeviceRing {
 public:
  CpuHostDeviceRing(void* to, const void* from, size_t result_bytes) : to_(to), from_(from) {
    for (auto& slot : slots_) slot.resize(result_bytes);
  }
  void* acquire() override { return to_; }
  void send(size_t) override {}
  void fetch(size_t bytes) override {
    if (bytes > 0) std::memcpy(slots_[(oldest_ + pending_) % kSlots].data(), from_, bytes);
    ++pending_;
  }
  const void* wait() override {
    const std::vector<char>& slot = slots_[oldest_];
    oldest_ = (oldest_ + 1) % kSlots;
    --pending_;
    return slot.data();
  }
  void drop() noexcept override { pending_ = 0; }

 private:
  void* to_;
  const void* from_;
  std::array<std::vector<char>, kSlots> slots_;
  size_t oldest_ = 0;
  size_t pending_ = 0;
};

// Bytes of copies from which on several threads make them: fewer take less time than threads need
// to begin.
constexpr size_t kSharedCopyBytes = size_t{128} << 10;

class CpuContext final : public DeviceContext {
 public:
  explicit CpuContext(const BackendOptions& options)
      : features_(cpu_features()), pool_(shared_pool(options.threads, options.pin_threads)) {}

  Device device() const override { return {DeviceType::kCpu, 0}; }
  std::unique_ptr<DeviceMemory> allocate(size_t bytes) override {
    return allocate_host_memory(bytes);
  }
  void populate(DeviceMemory& memory, size_t bytes) override {
    char* const begin = static_cast<char*>(memory.data());
    for_each(static_cast<int64_t>(ceil_div(bytes, kHugePage)),
             [&](int64_t page) { begin[static_cast<size_t>(page) * kHugePage] = 0; });
  }
  void upload(void* device_to, const void* host_from, size_t bytes) override {
    if (bytes > 0) std::memcpy(device_to, host_from, bytes);
  }
  void download(void* host_to, const void* device_from, size_t bytes) override {
    if (bytes > 0) std::memcpy(host_to, device_from, bytes);
  }
  void copy(std::span<const DeviceCopy> copies) override {
    const auto one = [&](int64_t index) {
      const DeviceCopy& copy = copies[static_cast<size_t>(index)];
      auto* to = static_cast<char*>(copy.to);
      const auto* from = static_cast<const char*>(copy.from);
      for (int64_t row = 0; row < copy.rows; ++row, to += copy.stride, from += copy.stride) {
        std::memcpy(to, from, copy.bytes);
      }
    };
    size_t bytes = 0;
    for (const DeviceCopy& copy : copies) bytes += copy.bytes * static_cast<size_t>(copy.rows);
    const auto count = static_cast<int64_t>(copies.size());
    if (bytes >= kSharedCopyBytes) return for_each(count, one);
    for (int64_t index = 0; index < count; ++index) one(index);
  }
  size_t free_bytes() const override { return free_host_memory(); }
  std::unique_ptr<UploadBuffer> make_upload_buffer(void* device_to, size_t) override {
    return std::make_unique<InPlaceUpload>(device_to);
  }
  std::unique_ptr<InputUpload> make_input_upload(void* device_to, size_t) override {
    return std::make_unique<HostInputUpload>(device_to);
  }
  std::unique_ptr<HostDeviceRing> make_ring(void* inputs, size_t, const void* results,
                                            size_t result_bytes) override {
    return std::make_unique<CpuHostDeviceRing>(inputs, results, result_bytes);
  }
  void synchronize() override {}
  // Measured on two cores of a server: 465 billion float32 operations a second and 29 GB read; with
  // half the bytes twice the operations.
  int64_t balanced_rows() const override { return 32; }
  double elapsed_ms(const std::function<void()>& work) override {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
  }
  void for_each(int64_t count, const std::function<void(int64_t)>& body) override {
    pool_->parallel_for(count, [&](int64_t i, int) { body(i); });
  }

  /// Returns whether dense layers take rows of `dtype`. Where they do not, a model of this dtype
  /// has weights of it that are multiplied with float32 rows.
  bool computes_in(DType dtype) const {
    return dtype == DType::kFloat32 || (dtype == DType::kBFloat16 && features_.bfloat16);
  }
  /// Throws RuntimeError unless models can be loaded with `dtype`.
  static void check_dtype(DType dtype) {
    if (dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16 ||
        dtype == DType::kInt8) {
      return;
    }
    throw RuntimeError(concat("dtype ", name_of(dtype), " is not supported on the CPU: use ",
                              "float32, bfloat16, float16 or int8"));
  }
  /// Throws RuntimeError unless operators take rows of `dtype`. Those other than dense layers take
  /// bfloat16 on every processor.
  static void check_rows(DType dtype) {
    if (dtype == DType::kFloat32 || dtype == DType::kBFloat16) return;
    throw RuntimeError(
        concat("rows of ", name_of(dtype), " are not supported on the CPU: use float32"));
  }
  ThreadPool& pool() { return *pool_; }

  /// Lets one operator run at a time, because operators share kernels and their scratch memory.
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
