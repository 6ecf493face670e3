#include <cuda_runtime.h>
#include <cutlass/arch/barrier.h>

#include <cute/arch/copy_sm80.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/arch/mma_sm80.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>

#include "cuda/common/launch.cuh"
#include "emulated_stream.h"
#include "fault_kernels.h"

namespace packhorse::emulated_test {
namespace {

using cuda::launch_kernel;
using Barrier = cutlass::arch::ClusterTransactionBarrier;

__global__ void rotation_kernel(Fault fault, const uint32_t* from, uint32_t* to) {
  __shared__ uint32_t kept[128];
  const unsigned i = threadIdx.x;
  const unsigned read = fault == Fault::kOutsideGlobal ? i + 4096 : i;
  cute::SM80_CP_ASYNC_CACHEALWAYS<uint32_t>::copy(from[read], kept[i]);
  cute::cp_async_fence();
  if (fault != Fault::kNoWait) cute::cp_async_wait<0>();
  if (fault == Fault::kOutsideShared) kept[i + 128] = i;
  if (fault == Fault::kWrongCount && i < 32) {
    asm volatile("bar.sync 0, 64;" ::: "memory");
  } else if (fault != Fault::kNoBarrier) {
    __syncthreads();
  }
  to[i] = kept[(i + 32) % 128];
}

__global__ void sum_kernel(Fault fault, const uint32_t* from, uint32_t* to) {
  uint32_t sum = from[threadIdx.x];
  if (fault == Fault::kDivergent && threadIdx.x < 16) {
    sum += __shfl_down_sync(0xffffffffu, sum, 1);
  } else {
    for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
  }
  to[threadIdx.x] = sum;
}

__global__ void box_kernel(Fault fault, const __grid_constant__ CUtensorMap map, uint16_t* to) {
  extern __shared__ __align__(1024) uint16_t box[];
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) {
    Barrier::init(&barrier, 1);
    if (fault != Fault::kNoBarrierFence) cutlass::arch::fence_barrier_init();
    Barrier::arrive_and_expect_tx(&barrier, fault == Fault::kTooFewBytes ? 1008 : 1024);
    cute::SM90_TMA_LOAD_2D::copy(&map, &barrier, 0, box, 16, 8);
  }
  __syncthreads();
  if (fault != Fault::kNoWait) Barrier::wait(&barrier, fault == Fault::kWrongParity ? 1 : 0);
  for (unsigned i = threadIdx.x; i < 512; i += 32) to[i] = box[i];
}

// The place of element (row, k) in a matrix of 16 columns without a swizzle: blocks of eight rows
// and eight columns, those of a row of blocks 128 bytes apart.
__device__ inline int place_of(int row, int k) {
  return row / 8 * 128 + k / 8 * 64 + row % 8 * 8 + k % 8;
}

__global__ void product_kernel(Fault fault, bool registers, const uint16_t* a, const uint16_t* b,
                               float* d) {
  using namespace cute::SM90;
  __shared__ __align__(1024) uint16_t shared_a[64 * 16];
  __shared__ __align__(1024) uint16_t shared_b[16 * 16];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  for (int i = thread; i < 64 * 16; i += 128) shared_a[place_of(i / 16, i % 16)] = a[i];
  for (int i = thread; i < 16 * 16; i += 128) shared_b[place_of(i / 16, i % 16)] = b[i];
  if (fault != Fault::kNoFence) cutlass::arch::fence_view_async_shared();
  __syncthreads();
  const auto descriptor = [&](const void* at, uint64_t stride) {
    return uint64_t{cute::cast_smem_ptr_to_uint(at)} >> 4 | uint64_t{8} << 16 | stride << 32;
  };
  const uint64_t of_a = descriptor(shared_a, fault == Fault::kWrongStride ? 8 : 16);
  const uint64_t of_b = descriptor(shared_b, 16);
  const int row = thread / 32 * 16 + lane / 4;
  uint32_t x[4];
  for (int r = 0; r < 4; ++r) {
    memcpy(&x[r], a + (row + r % 2 * 8) * 16 + r / 2 * 8 + lane % 4 * 2, 4);
  }
  float s[8] = {};
  if (fault != Fault::kNoProductFence) cute::warpgroup_arrive();
  if (registers) {
    GMMA::MMA_64x16x16_F32F16F16_RS<GMMA::Major::K, GMMA::Major::K>::fma(
        x[0], x[1], x[2], x[3], of_b, s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]);
  } else {
    GMMA::MMA_64x16x16_F32F16F16_SS<GMMA::Major::K, GMMA::Major::K>::fma(
        of_a, of_b, s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]);
  }
  cute::warpgroup_commit_batch();
  if (fault == Fault::kChangedRegisters) x[1] += 1;
  if (fault != Fault::kNoWait) cute::warpgroup_wait<0>();
  for (int i = 0; i < 8; ++i) {
    d[(row + i / 2 % 2 * 8) * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2] = s[i];
  }
  if (fault == Fault::kNoWait) cute::warpgroup_wait<0>();
}

__global__ void bytes_kernel(bool is_unsigned, const int8_t* a, const int8_t* b, int32_t* d) {
  const int lane = static_cast<int>(threadIdx.x);
  uint32_t x[4], y[2], s[4];
  for (int r = 0; r < 4; ++r) {
    memcpy(&x[r], a + (lane / 4 + r % 2 * 8) * 32 + r / 2 * 16 + lane % 4 * 4, 4);
  }
  for (int r = 0; r < 2; ++r) memcpy(&y[r], b + lane / 4 * 32 + r * 16 + lane % 4 * 4, 4);
  int32_t* const to = d + lane / 4 * 8 + lane % 4 * 2;
  memcpy(&s[0], to, 8);
  memcpy(&s[2], to + 64, 8);
  if (is_unsigned) {
    cute::SM80_16x8x32_S32U8S8S32_TN::fma(s[0], s[1], s[2], s[3], x[0], x[1], x[2], x[3], y[0],
                                          y[1], s[0], s[1], s[2], s[3]);
  } else {
    cute::SM80_16x8x32_S32S8S8S32_TN::fma(s[0], s[1], s[2], s[3], x[0], x[1], x[2], x[3], y[0],
                                          y[1], s[0], s[1], s[2], s[3]);
  }
  memcpy(to, &s[0], 8);
  memcpy(to + 64, &s[2], 8);
}

__global__ void meeting_kernel(int tries, unsigned* counter, uint32_t* to) {
  __shared__ uint32_t met;
  if (threadIdx.x == 0) {
    atomicAdd(counter, 1);
    met = 0;
    for (int i = 0; met == 0 && i < tries; ++i) {
      unsigned count;
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
      met = count == gridDim.x ? 1 : 0;
    }
  }
  __syncthreads();
  if (threadIdx.x == 40) to[blockIdx.x] = met;
}

}  // namespace

void launch_rotation(Fault fault, const uint32_t* from, uint32_t* to) {
  launch_kernel(rotation_kernel, 1, 128, 0, cuda::emulated_stream(), fault, from, to);
}
void launch_sum(Fault fault, const uint32_t* from, uint32_t* to) {
  launch_kernel(sum_kernel, 1, 32, 0, cuda::emulated_stream(), fault, from, to);
}
void launch_box(Fault fault, const CUtensorMap& map, uint16_t* to) {
  launch_kernel(box_kernel, 1, 32, 1024, cuda::emulated_stream(), fault, map, to);
}
void launch_product(Fault fault, bool registers, const uint16_t* a, const uint16_t* b, float* d) {
  launch_kernel(product_kernel, 1, 128, 0, cuda::emulated_stream(), fault, registers, a, b, d);
}
void launch_bytes(bool is_unsigned, const int8_t* a, const int8_t* b, int32_t* d) {
  launch_kernel(bytes_kernel, 1, 32, 0, cuda::emulated_stream(), is_unsigned, a, b, d);
}
void launch_meeting(int blocks, int tries, unsigned* counter, uint32_t* to) {
  launch_kernel(meeting_kernel, static_cast<unsigned>(blocks), 64, 0, cuda::emulated_stream(),
                tries, counter, to);
}

}  // namespace packhorse::emulated_test
