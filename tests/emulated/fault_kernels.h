// Small kernels that are right, or wrong in one way: what the emulator must find.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace packhorse::emulated_test {

enum class Fault : uint8_t {
  kNone,
  kNoWait,           // for a copy, or for a product
  kNoBarrier,        // between writing and reading
  kWrongParity,      // of an mbarrier
  kTooFewBytes,      // expected of a copy
  kNoFence,          // between threads' writes and a product that reads them
  kNoBarrierFence,   // between an mbarrier's beginning and a copy
  kNoProductFence,   // wgmma.fence
  kWrongStride,      // of a matrix in shared memory
  kOutsideShared,    // writes
  kOutsideGlobal,    // reads
  kWrongCount,       // of threads at a barrier
  kDivergent,        // lanes shuffle at different places
  kChangedRegisters  // that a product reads
};

/// to[i] = from[(i + 32) % 128] of 128 threads, by cp.async and shared memory.
void launch_rotation(Fault fault, const uint32_t* from, uint32_t* to);
/// to[i] = the sum of from[0] to from[31] for 32 threads, by shuffles.
void launch_sum(Fault fault, const uint32_t* from, uint32_t* to);
/// to = box (16, 8) of a map of 16-bit numbers whose boxes are 64 x 8, as they lie in memory.
void launch_box(Fault fault, const CUtensorMap& map, uint16_t* to);
/// d[64][16] = a[64][16] b[16][16]^T, of float16, by wgmma from shared memory without a swizzle;
/// with `registers`, a comes from registers.
void launch_product(Fault fault, bool registers, const uint16_t* a, const uint16_t* b, float* d);
/// d[16][8] += a[16][32] b[8][32]^T, of signed bytes, and of a's unsigned ones.
void launch_bytes(bool is_unsigned, const int8_t* a, const int8_t* b, int32_t* d);
/// Of so many blocks each counts itself and looks until all have, or `tries` times: those that have
/// seen it write a 1 to their place, the others a 0.
void launch_meeting(int blocks, int tries, unsigned* counter, uint32_t* to);

}  // namespace packhorse::emulated_test
