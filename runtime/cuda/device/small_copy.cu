// Small copies by a kernel, a vector of 16 bytes for each thread. A copy engine has more bytes a
// second, but work behind it begins some 10 us later.
#include "core/math.h"
#include "cuda/device/check.h"
#include "cuda/device/small_copy.h"

namespace packhorse::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr size_t kVector = sizeof(uint4);
constexpr size_t kMostBytes = size_t{256} << 10;

unsigned blocks_of(const SmallCopy& copy) {
  return static_cast<unsigned>(ceil_div(copy.bytes, kVector * kThreads));
}

/// The first `first_blocks` blocks make the first copy, the others the second.
__global__ void __launch_bounds__(kThreads)
    small_copy_kernel(SmallCopy first, SmallCopy second, unsigned first_blocks) {
  const bool is_first = blockIdx.x < first_blocks;
  const SmallCopy& copy = is_first ? first : second;
  auto* const to = static_cast<unsigned char*>(copy.to);
  const auto* const from = static_cast<const unsigned char*>(copy.from);
  const size_t block = is_first ? blockIdx.x : blockIdx.x - first_blocks;
  const size_t begin = (block * kThreads + threadIdx.x) * kVector;
  if (begin + kVector <= copy.bytes) {
    *reinterpret_cast<uint4*>(to + begin) = *reinterpret_cast<const uint4*>(from + begin);
  } else {
    for (size_t i = begin; i < copy.bytes; ++i) to[i] = from[i];
  }
}

/// Returns what is left for the kernel to do.
SmallCopy copy_if_large(const SmallCopy& copy, cudaStream_t stream) {
  if (copy.bytes <= kMostBytes) return copy;
  CUDA_CHECK(cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyDefault, stream));
  return {};
}

}  // namespace

void copy_in_stream(const SmallCopy& first, const SmallCopy& second, cudaStream_t stream) {
  const SmallCopy small_first = copy_if_large(first, stream);
  const SmallCopy small_second = copy_if_large(second, stream);
  const unsigned first_blocks = blocks_of(small_first);
  const unsigned blocks = first_blocks + blocks_of(small_second);
  if (blocks == 0) return;
  // A launch that waits for all before it, as a copy does (cuda/common/launch.cuh).
  small_copy_kernel<<<blocks, kThreads, 0, stream>>>(small_first, small_second, first_blocks);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace packhorse::cuda
