// Copies of a few kilobytes by a kernel: a vector of 16 bytes for each thread.
#include "cuda/check.h"
#include "cuda/launch.cuh"
#include "cuda/small_copy.h"

namespace packhorse::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr size_t kVector = sizeof(uint4);
constexpr size_t kMostBytes = size_t{64} << 10;

__global__ void __launch_bounds__(kThreads)
    small_copy_kernel(unsigned char* to, const unsigned char* from, unsigned bytes) {
  wait_for_previous_kernel();
  const unsigned begin = (blockIdx.x * kThreads + threadIdx.x) * kVector;
  if (begin + kVector <= bytes) {
    *reinterpret_cast<uint4*>(to + begin) = *reinterpret_cast<const uint4*>(from + begin);
  } else {
    for (unsigned i = begin; i < bytes; ++i) to[i] = from[i];
  }
}

// What a step of single tokens has, as a rule.
constexpr unsigned kUsualBytes = 32u << 10;

// Asks for the vector here, and not where the compiler sees it used.
__device__ inline uint4 ask_for(const uint4* from) {
  uint4 vector;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(vector.x), "=r"(vector.y), "=r"(vector.z), "=r"(vector.w)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return vector;
}

// A read over the bus takes about a microsecond until it comes. So the number of bytes is not
// waited for before the first vector is asked for, which there is room for.
__global__ void __launch_bounds__(kThreads)
    counted_copy_kernel(uint4* to, const uint4* from, const unsigned* bytes, unsigned most) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  unsigned i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= most) return;
  uint4 vector = ask_for(from + i);
  const unsigned count = (__ldcv(bytes) + kVector - 1) / kVector;
  while (i < count) {
    to[i] = vector;
    i += gridDim.x * kThreads;
    if (i < count) vector = ask_for(from + i);
  }
}

unsigned vectors_of(size_t bytes) { return static_cast<unsigned>((bytes + kVector - 1) / kVector); }
unsigned blocks_of(unsigned vectors) { return (vectors + kThreads - 1) / kThreads; }

}  // namespace

void copy_counted_in_stream(void* to, const void* from, const unsigned* bytes, size_t most_bytes,
                            cudaStream_t stream) {
  const auto vectors = static_cast<unsigned>(most_bytes / kVector);
  const unsigned usual = kUsualBytes / kVector;
  launch_kernel(counted_copy_kernel, blocks_of(vectors < usual ? vectors : usual), kThreads, 0,
                stream, static_cast<uint4*>(to), static_cast<const uint4*>(from), bytes, vectors);
}

void copy_in_stream(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return;
  if (bytes > kMostBytes) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
    return;
  }
  // Without the attribute of cuda/launch.cuh, like a copy.
  small_copy_kernel<<<blocks_of(vectors_of(bytes)), kThreads, 0, stream>>>(
      static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from),
      static_cast<unsigned>(bytes));
  CUDA_CHECK(cudaGetLastError());
}

void copy_behind_kernel(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  if (bytes == 0 || bytes > kMostBytes) return copy_in_stream(to, from, bytes, stream);
  launch_kernel(small_copy_kernel, blocks_of(vectors_of(bytes)), kThreads, 0, stream,
                static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from),
                static_cast<unsigned>(bytes));
}

}  // namespace packhorse::cuda
