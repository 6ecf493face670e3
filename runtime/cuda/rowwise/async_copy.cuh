// Copies from global to shared memory that take no registers on their way (cp.async). Each thread
// counts its own copies, in groups. After it has waited for them, it may read what it copied
// itself; and what other threads copied, after they have waited too and all have passed a barrier.
#pragma once

#include <cuda_runtime.h>

namespace packhorse::cuda {

/// Starts copying 16 bytes. Both addresses are aligned to 16 bytes.
__device__ inline void copy_async(uint4* shared, const void* global) {
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

/// Ends a group, which holds all copies since the last group ended, and may hold none.
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits for all groups but the latest kLeft.
template <int kLeft>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

}  // namespace packhorse::cuda
