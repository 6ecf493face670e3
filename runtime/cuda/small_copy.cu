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

// What a step of single tokens has, as a rule.
constexpr unsigned kUsualBytes = 32u << 10;

// A read over the bus takes about a microsecond until it comes. So the number of bytes is not
// waited for before the first vector is asked for, which there is room for.
__global__ void __launch_bounds__(kThreads)
    counted_copy_kernel(uint4* to, const uint4* from, const unsigned* bytes, unsigned most) {
  unsigned i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= most) return;
  uint4 vector = __ldcv(from + i);
  const unsigned count = (__ldcv(bytes) + kVector - 1) / kVector;
  while (i < count) {
    to[i] = vector;
    i += gridDim.x * kThreads;
    if (i < count) vector = __ldcv(from + i);
  }
}

}  // namespace

void copy_counted_in_stream(void* to, const void* from, const unsigned* bytes, size_t most_bytes,
                            cudaStream_t stream) {
  const auto vectors = static_cast<unsigned>(most_bytes / kVector);
  const unsigned usual = kUsualBytes / kVector;
  const unsigned blocks = ((vectors < usual ? vectors : usual) + kThreads - 1) / kThreads;
  counted_copy_kernel<<<blocks, kThreads, 0, stream>>>(
      static_cast<uint4*>(to), static_cast<const uint4*>(from), bytes, vectors);
  CUDA_CHECK(cudaGetLastError());
}

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
