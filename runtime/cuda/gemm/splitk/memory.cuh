// Access of blocks of a cluster to each other's shared memory (PTX ISA, mapa, st.async,
// barrier.cluster).
#pragma once

#include <cstdint>

namespace packhorse::cuda {

/// Returns the number of this block in its cluster.
__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// Returns the number of the cluster in a grid of one dimension.
__device__ inline uint32_t cluster_number() {
  uint32_t number;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(number));
  return number;
}

/// Arrives at the barrier of a cluster. After waiting there, a thread sees the mbarriers that the
/// others initialised and fenced (fence.mbarrier_init) before they arrived. Other writes are not
/// ordered, which would take as long as a fence of the device.
__device__ inline void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ inline void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
/// Returns when all threads of the cluster have called it. What they read before is read before
/// anything that is written afterwards.
__device__ inline void meet_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

__device__ inline uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}
/// Maps an address of this block's shared memory to that of block `rank` of the cluster.
__device__ inline uint32_t peer_address(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

/// Stores 16 bytes in the shared memory of a block of the cluster; `barrier` there counts them when
/// they are visible.
__device__ inline void send_to_peer(uint32_t to, float a, float b, float c, float d,
                                    uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to),
      "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier)
      : "memory");
}
/// Waits until all bytes that the first phase of a barrier expects have arrived.
__device__ inline void wait_for_peers(uint32_t barrier) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again%=: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra again%=; }" ::"r"(barrier)
      : "memory");
}
__device__ inline float4 load_shared(uint32_t address) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

}  // namespace packhorse::cuda
