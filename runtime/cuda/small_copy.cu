// Copies of a few kilobytes by a kernel: a vector of 16 bytes for each thread.
#include "cuda/check.h"
#include "cuda/small_copy.h"

namespace packhorse::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr size_t kVector = sizeof(uint4);
constexpr size_t kMostBytes = size_t{64} << 10;

__global__ void __launch_bounds__(kThreads)
    small_copy_kernel(unsigned char* to, const unsigned char* from, unsigned bytes) {
  const unsigned begin = (blockIdx.x * kThreads + threadIdx.x) * kVector;
  if (begin + kVector <= bytes) {
    *reinterpret_cast<uint4*>(to + begin) = *reinterpret_cast<const uint4*>(from + begin);
  } else {
    for (unsigned i = begin; i < bytes; ++i) to[i] = from[i];
  }
}

}  // namespace

void copy_in_stream(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return;
  if (bytes > kMostBytes) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
    return;
  }
  const size_t vectors = (bytes + kVector - 1) / kVector;
  // Without the attribute of cuda/launch.cuh, like a copy.
  const auto blocks = static_cast<unsigned>((vectors + kThreads - 1) / kThreads);
  small_copy_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<unsigned char*>(to),
                                                     static_cast<const unsigned char*>(from),
                                                     static_cast<unsigned>(bytes));
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace packhorse::cuda
