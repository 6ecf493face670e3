// Programmatic dependent launch (CUDA C++ Programming Guide): the blocks of a kernel start, and set
// themselves up, while the previous kernel of the stream still runs. Three rules make that safe,
// and every kernel that is launched through this header keeps them:
//
// 1. Every block calls wait_for_previous_kernel() before its first access to memory that another
//    kernel writes or reads (with the exceptions of rule 3), and before it exits, even if it has no
//    work. So a kernel is complete only when all kernels before it are, and waiting for one kernel
//    is waiting for all of them. It also means that a kernel writes a shared buffer only after
//    earlier kernels have read it.
// 2. A block calls let_next_kernel_start() only after that. So when the first block of a kernel
//    starts, all kernels before its predecessor are complete. Norms of small batches are the
//    exception and call it before they wait: in a layer that takes microseconds, the GEMM behind
//    the norm can then load its weights while the GEMM ahead of the norm still runs.
// 3. Ahead of its wait, a kernel may therefore read memory that its predecessor does not write. If
//    the predecessor is such a norm, the memory must not be written either by any norm of the run
//    of such norms directly before the kernel, or by the kernel ahead of that run. A model's
//    weights are always safe to read.
//
// GEMMs, norms and attention read a batch's offsets and counts ahead of their wait. The kernel that
// writes those must therefore lie further back, with an embedding, a copy or a synchronisation in
// between. An embedding always waits before it lets the next kernel start.
//
// A kernel that is launched without the attribute waits, like a copy, for everything before it, and
// the two calls do nothing in it.
#pragma once

#include <cuda_runtime.h>

#include "core/math.h"
#include "cuda/device/check.h"
#include "cuda/device/stream.h"

namespace packhorse::cuda {

/// Waits until the kernels before this one are complete and their writes can be seen (PTX ISA,
/// griddepcontrol.wait).
__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next kernel's blocks start, once every block of this kernel has called it or has ended
/// (PTX ISA, griddepcontrol.launch_dependents).
__device__ inline void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Lets a kernel have as much dynamic shared memory as the device gives a block. The limit belongs
/// to the kernel, for all threads of the process, so where launches of a kernel have different
/// sizes it must not be the size of one of them: another thread would lower it between this and its
/// launch. Throws RuntimeError.
template <class... Params>
void allow_most_shared_memory(void (*kernel)(Params...), const DeviceCaps& caps) {
  cudaFuncAttributes attributes{};
  CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(caps.shared_bytes - attributes.sharedSizeBytes)));
}

/// Returns the number of blocks for `count` items, `each` to a block.
inline unsigned block_count(int64_t count, int64_t each) {
  return static_cast<unsigned>(ceil_div(count, each));
}

/// Launches a kernel that keeps the rules above. On devices with clusters its blocks start in
/// clusters of `cluster` blocks; `cluster` must divide the grid. A kernel that also runs on other
/// devices may rely on the clusters for speed, but not for its results. Throws RuntimeError.
template <class... Params, class... Args>
void launch_clusters(unsigned cluster, void (*kernel)(Params...), dim3 grid, unsigned threads,
                     size_t shared_bytes, const KernelStream& stream, const Args&... args) {
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (stream.caps.pdl) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (stream.caps.clusters && cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {cluster, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args...));
}

/// Launches a kernel that keeps the rules above, without clusters. Throws RuntimeError.
template <class... Params, class... Args>
void launch_kernel(void (*kernel)(Params...), dim3 grid, unsigned threads, size_t shared_bytes,
                   const KernelStream& stream, const Args&... args) {
  launch_clusters(1, kernel, grid, threads, shared_bytes, stream, args...);
}

}  // namespace packhorse::cuda
