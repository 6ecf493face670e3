// The owners of device and page-locked memory, and the two buffers that transfers go through.
#include "cuda/device/memory.h"

#include <cstring>
#include <iomanip>
#include <sstream>

#include "core/format.h"
#include "core/math.h"
#include "cuda/device/check.h"

namespace packhorse::cuda {
namespace {

std::string in_mebibytes(size_t bytes) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1) << static_cast<double>(bytes) / (1 << 20) << " MiB";
  return out.str();
}

}  // namespace

DeviceGuard::DeviceGuard(int device) {
  CUDA_CHECK(cudaGetDevice(&previous_));
  changed_ = previous_ != device;
  if (changed_) CUDA_CHECK(cudaSetDevice(device));
}

DeviceGuard::~DeviceGuard() {
  if (changed_) cudaSetDevice(previous_);
}

CudaMemory::CudaMemory(int device, size_t bytes) {
  bytes_ = bytes;
  if (bytes == 0) return;
  const DeviceGuard guard(device);
  const cudaError_t error = cudaMalloc(&data_, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free = 0;
    size_t total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    throw OutOfMemory(concat("cuda:", device, " has too little memory: ", in_mebibytes(bytes),
                             " needed in one piece, ", in_mebibytes(free), " free of ",
                             in_mebibytes(total),
                             "; lower max_tokens, max_sequences or output_slots, or take a smaller "
                             "model"));
  }
  CUDA_CHECK(error);
}

CudaMemory::~CudaMemory() {
  if (data_ != nullptr) cudaFree(data_);  // cudaFree finds the pointer's device by itself
}

PinnedMemory::PinnedMemory(size_t bytes) : bytes_(bytes) {
  void* data = nullptr;
  CUDA_CHECK(cudaHostAlloc(&data, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
  data_ = static_cast<unsigned char*>(data);
  std::memset(data_, 0, bytes);
}

PinnedMemory::~PinnedMemory() { cudaFreeHost(data_); }

void* UploadRing::acquire() {
  CUDA_CHECK(cudaEventSynchronize(read_[next_]));
  return memory_.data() + next_ * kSlotBytes;
}

void UploadRing::release(cudaStream_t stream) {
  CUDA_CHECK(cudaEventRecord(read_[next_], stream));
  next_ = (next_ + 1) % kSlots;
}

void DownloadBuffer::download(void* host_to, const void* device_from, size_t bytes,
                              cudaStream_t stream) {
  if (used_ + bytes > kBytes) {
    straight_ = true;
    CUDA_CHECK(cudaMemcpyAsync(host_to, device_from, bytes, cudaMemcpyDeviceToHost, stream));
    return;
  }
  pending_.push_back({host_to, used_, bytes});
  CUDA_CHECK(
      cudaMemcpyAsync(memory_.data() + used_, device_from, bytes, cudaMemcpyDeviceToHost, stream));
  used_ += round_up(bytes, 16);
}

void DownloadBuffer::finish(bool deliver) {
  if (deliver) {
    for (const Pending& part : pending_) {
      std::memcpy(part.to, memory_.data() + part.offset, part.bytes);
    }
  }
  pending_.clear();
  used_ = 0;
  straight_ = false;
}

void DownloadBuffer::drop(cudaStream_t stream) noexcept {
  // Errors are ignored: this runs while another error is being reported, which is why nobody waits
  // for the data.
  if (straight_) static_cast<void>(cudaStreamSynchronize(stream));
  finish(false);
}

}  // namespace packhorse::cuda
