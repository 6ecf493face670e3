// A kernel that makes float32 of numbers of 16 bits that others left on the device. It reads them
// one by one: a caller's array may begin anywhere.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "core/math.h"
#include "cuda/device/check.h"
#include "cuda/device/io.h"

namespace packhorse::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 4096;

template <class T>
__global__ void __launch_bounds__(kThreads)
    load_floats_kernel(const T* from, int64_t count, float* to) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    to[i] = static_cast<float>(from[i]);
  }
}

template <class T>
void launch(const void* from, int64_t count, float* to, cudaStream_t stream) {
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(ceil_div(count, kThreads), kMostBlocks));
  auto* const kernel = load_floats_kernel<T>;
  kernel<<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(from), count, to);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_load_floats(const void* from, DType dtype, int64_t count, float* to,
                        cudaStream_t stream) {
  if (dtype == DType::kFloat16) return launch<__half>(from, count, to, stream);
  launch<__nv_bfloat16>(from, count, to, stream);
}

}  // namespace packhorse::cuda
