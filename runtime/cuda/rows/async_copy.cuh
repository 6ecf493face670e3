// Copies from global to shared memory that take no registers on their way (cp.async). Each thread
// counts its own, in groups, and after waiting for them may read what it copied; what other threads
// copied it may read once they have waited and all have met at a barrier.
#pragma once

#include <cuda_runtime.h>

namespace packhorse::cuda {

/// 16 bytes, both sides aligned to as much.
__device__ inline void copy_async(uint4* shared, const void* global) {
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

/// Ends a group: the copies since the last one. It may hold none.
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits for all groups but the last kLeft.
template <int kLeft>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

}  // namespace packhorse::cuda
