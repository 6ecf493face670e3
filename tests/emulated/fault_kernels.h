// Small kernels that are right, or have one fault, which the emulator must find.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace packhorse::emulated_test {

enum class Fault : uint8_t {
  kNone,
  kNoWait,           // no wait for a copy, or for a product
  kNoBarrier,        // no barrier between writing and reading
  kWrongParity,      // wrong parity of an mbarrier
  kTooFewBytes,      // too few bytes expected of a copy
  kNoFence,          // no fence between threads' writes and a product that reads them
  kNoBarrierFence,   // no fence between an mbarrier's initialisation and a copy
  kNoProductFence,   // no wgmma.fence
  kWrongStride,      // wrong stride of a matrix in shared memory
  kOutsideShared,    // a write outside of shared memory
  kOutsideGlobal,    // a read outside of global memory
  kWrongCount,       // wrong number of threads at a barrier
  kDivergent,        // lanes shuffle at different places
  kChangedRegisters  // registers changed that a product still reads
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
/// Launches so many blocks. Each counts itself, and looks until all have done so, or `tries` times:
/// a block that has seen all writes a 1 to its place, another one a 0.
void launch_meeting(int blocks, int tries, unsigned* counter, uint32_t* to);

}  // namespace packhorse::emulated_test
