#include "cpu/cpu_context.h"

#include <cstring>

#include "core/format.h"
#include "cpu/host_memory.h"
#include "packhorse/error.h"

namespace packhorse::cpu {
namespace {

// The device's memory is the host's: what is written there has arrived.
class InPlace final : public UploadBuffer {
 public:
  explicit InPlace(void* to) : to_(to) {}
  void* acquire() override { return to_; }
  void send(size_t) override {}

 private:
  void* to_;
};

}  // namespace

CpuContext::CpuContext(const BackendOptions& options)
    : features_(cpu_features()), pool_(shared_pool(options.threads, options.pin_threads)) {}

std::unique_ptr<DeviceMemory> CpuContext::allocate(size_t bytes) {
  return allocate_host_memory(bytes);
}

void CpuContext::upload(void* device_to, const void* host_from, size_t bytes) {
  if (bytes > 0) std::memcpy(device_to, host_from, bytes);
}

void CpuContext::download(void* host_to, const void* device_from, size_t bytes) {
  if (bytes > 0) std::memcpy(host_to, device_from, bytes);
}

std::unique_ptr<UploadBuffer> CpuContext::make_upload_buffer(void* device_to, size_t) {
  return std::make_unique<InPlace>(device_to);
}

void CpuContext::for_each(int64_t count, const std::function<void(int64_t)>& body) {
  pool_->parallel_for(count, [&](int64_t i, int) { body(i); });
}

void CpuContext::check_dtype(DType dtype) const {
  if (dtype == DType::kFloat32 || dtype == DType::kInt8) return;
  if (dtype == DType::kBFloat16) {
    if (features_.bfloat16) return;
    throw RuntimeError(
        "dtype bfloat16 needs a CPU with AVX512-BF16 or AMX-BF16, which this one lacks (or "
        "ONEDNN_MAX_CPU_ISA hides): use float32");
  }
  throw RuntimeError(concat("dtype ", name_of(dtype), " is not supported on the CPU: use float32",
                            features_.bfloat16 ? ", bfloat16" : "", " or int8"));
}

}  // namespace packhorse::cpu
