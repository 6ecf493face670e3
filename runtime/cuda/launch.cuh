// Programmatic dependent launch: a kernel's blocks start, and set themselves up, while the stream's
// previous kernel still runs. What keeps that safe, in every kernel launched through this header:
//
// 1. Every block calls wait_for_previous_kernel() before its first access to memory that another
//    kernel writes or reads (but for rule 3), and before it exits, empty blocks too. A kernel is
//    then complete only when all before it are, so waiting for one kernel is waiting for all of
//    them; it orders writes after earlier reads of a shared buffer as well.
// 2. Only after that may it call let_next_kernel_start(). So when a kernel's first block starts,
//    those before its predecessor are complete. Norms of small batches call it before: in a layer
//    that is over in microseconds, the weights of the GEMM behind a norm then come while the GEMM
//    ahead of it still runs.
// 3. Ahead of its wait a kernel may so read what the kernel before it does not write, nor, where
//    that is such a norm, the run of such norms directly before it and the kernel ahead of that
//    run. In a model, weights are always of that kind.
//
// GEMMs, norms and attention read a batch's offsets and counts ahead of their wait: what writes
// those must lie further back, with an embedding, a copy or a synchronisation in between. An
// embedding never lets the next kernel start ahead of its own wait.
//
// A kernel launched without the attribute (or a copy) waits for all before it, and the two calls
// do nothing.
#pragma once

#include <cuda_runtime.h>

#include "cuda/check.h"

namespace packhorse::cuda {

__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Takes effect once every block of this kernel has called it or is done.
__device__ inline void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Whether kernels of this build that run on the current device contain the calls above: those
/// compiled for sm_90a do, PTX of compute_80 does not.
inline bool kernels_may_overlap() {
#ifdef PACKHORSE_CUDA_SM90
  int device = 0;
  int major = 0;
  int minor = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return major == 9 && minor == 0;
#else
  return false;
#endif
}

/// Launches a kernel that keeps the rules above. Where kernels overlap, its blocks start in
/// clusters of `cluster`, which divides the grid. A kernel may count on that for speed, not for its
/// results. Throws RuntimeError.
template <class... Params, class... Args>
void launch_clusters(unsigned cluster, void (*kernel)(Params...), dim3 grid, unsigned threads,
                     size_t shared_bytes, cudaStream_t stream, const Args&... args) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = kernels_may_overlap() ? (cluster > 1 ? 2 : 1) : 0;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args...));
}

/// The same, blocks one by one.
template <class... Params, class... Args>
void launch_kernel(void (*kernel)(Params...), dim3 grid, unsigned threads, size_t shared_bytes,
                   cudaStream_t stream, const Args&... args) {
  launch_clusters(1, kernel, grid, threads, shared_bytes, stream, args...);
}

}  // namespace packhorse::cuda
