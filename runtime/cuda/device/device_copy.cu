// Many copies by a kernel, whose parameters are the places: they need no memory of their own, which
// a launch before could still be reading.
#include <algorithm>
#include <cstdint>

#include "core/math.h"
#include "cuda/device/check.h"
#include "cuda/device/device_copy.h"

namespace packhorse::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr int64_t kVector = sizeof(uint4);
constexpr int64_t kVectorsPerThread = 4;
constexpr size_t kMostCopies = 640;  // parameters may have 32,764 bytes

struct Copies {
  DeviceCopy each[kMostCopies];
};
static_assert(sizeof(Copies) <= 32764);

int64_t vectors_of(const DeviceCopy& copy) {
  return copy.rows * ceil_div(static_cast<int64_t>(copy.bytes), kVector);
}

/// blockIdx.y: the copy; the blocks of a column share its vectors.
__global__ void __launch_bounds__(kThreads) copy_kernel(const __grid_constant__ Copies copies) {
  const DeviceCopy& copy = copies.each[blockIdx.y];
  const auto bytes = static_cast<int64_t>(copy.bytes);
  const auto stride = static_cast<int64_t>(copy.stride);
  const int64_t row_vectors = (bytes + kVector - 1) / kVector;
  const int64_t count = copy.rows * row_vectors;
  auto* const to = static_cast<unsigned char*>(copy.to);
  const auto* const from = static_cast<const unsigned char*>(copy.from);
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    const int64_t row = i / row_vectors;
    const int64_t begin = (i - row * row_vectors) * kVector;
    const int64_t at = row * stride + begin;
    if (begin + kVector <= bytes) {
      *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(from + at);
    } else {
      for (int64_t j = 0; j < bytes - begin; ++j) to[at + j] = from[at + j];
    }
  }
}

}  // namespace

void copy_on_device(std::span<const DeviceCopy> copies, cudaStream_t stream) {
  while (!copies.empty()) {
    const std::span<const DeviceCopy> some = copies.first(std::min(kMostCopies, copies.size()));
    copies = copies.subspan(some.size());
    Copies parameters;
    std::ranges::copy(some, parameters.each);
    int64_t most = 1;
    for (const DeviceCopy& copy : some) most = std::max(most, vectors_of(copy));
    const int64_t columns = ceil_div(most, kThreads * kVectorsPerThread);
    const dim3 grid(static_cast<unsigned>(columns), static_cast<unsigned>(some.size()));
    // A launch that waits for all before it, as a copy does (cuda/common/launch.cuh).
    copy_kernel<<<grid, kThreads, 0, stream>>>(parameters);
    CUDA_CHECK(cudaGetLastError());
  }
}

}  // namespace packhorse::cuda
