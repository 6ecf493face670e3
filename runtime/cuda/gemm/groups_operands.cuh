// A lane's part of a packed block (groups_layout.h), as operands of tensor cores.
#pragma once

#include "cuda/gemm/groups_layout.h"
#include "cuda/gemm/groups_values.cuh"

namespace packhorse::cuda {

/// Makes the left operands of kSteps steps, from step kFirst on, of the packed block at `weight`.
/// kFirst is the first step of a chunk and of a group.
template <int kBits, bool kMinima, int kGroupSteps, int kFirst, int kSteps>
__device__ __forceinline__ void groups_operands(uint32_t (&left)[kSteps][4],
                                                const unsigned char* weight,
                                                const GroupsLayout& layout) {
  constexpr int kChunkSteps = 16 / kBits;
  constexpr int kScaleWords = kMinima ? 2 : 1;
  static_assert(kFirst % kChunkSteps == 0 && kFirst % kGroupSteps == 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned char* const scales_at = weight + lane / 4 * (4 * kScaleWords);
  const unsigned char* const values_at = weight + layout.header_bytes + lane * 16;
  GroupsScales scales{};
  uint32_t values[4] = {};
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int step = kFirst + s;
    if (step % kGroupSteps == 0) {
      uint32_t words[2] = {};
      const int row = step * layout.rows / kGroupsSteps;
      const auto* entry = reinterpret_cast<const uint32_t*>(scales_at + row * (32 * kScaleWords));
      if constexpr (kMinima) {
        const uint2 both = *reinterpret_cast<const uint2*>(entry);
        words[0] = both.x;
        words[1] = both.y;
      } else {
        words[0] = *entry;
      }
      scales = groups_scales<kMinima>(words);
    }
    if (step % kChunkSteps == 0) {
      const uint4 bits =
          *reinterpret_cast<const uint4*>(values_at + step / kChunkSteps * kGroupsChunk);
      values[0] = bits.x;
      values[1] = bits.y;
      values[2] = bits.z;
      values[3] = bits.w;
    }
    unpack_groups<kBits, kMinima>(values + step % kChunkSteps * (kBits / 4), scales, left[s]);
  }
}

}  // namespace packhorse::cuda
