// A lane's part of a packed block (gemm/w4a16/layout.h), as operands of tensor cores.
#pragma once

#include "cuda/gemm/w4a16/layout.h"
#include "cuda/gemm/w4a16/values.cuh"

namespace packhorse::cuda {

/// Decodes A operands from the packed block at `weight`, one step of 16 elements of k after the
/// other. kGroupSteps: steps that share scales.
template <int kBits, bool kMinima, int kGroupSteps>
class W4a16Operands {
 public:
  static constexpr int kChunkSteps = 16 / kBits;  // steps of the 16 bytes that a lane reads at once

  __device__ W4a16Operands(const unsigned char* weight, const W4a16Layout& layout)
      : scales_at_(weight + lane() / 4 * (4 * kScaleWords)),
        values_at_(weight + layout.header_bytes + lane() * 16),
        scale_rows_(layout.rows) {}

  /// Decodes the operand of `step`. Calls go through ascending steps, from the first of a chunk and
  /// of a group on.
  __device__ __forceinline__ void make(uint32_t (&left)[4], int step) {
    if (step % kGroupSteps == 0) {
      uint32_t words[2] = {};
      const int row = step * scale_rows_ / kW4a16Steps;
      const auto* entry = reinterpret_cast<const uint32_t*>(scales_at_ + row * (32 * kScaleWords));
      if constexpr (kMinima) {
        const uint2 both = *reinterpret_cast<const uint2*>(entry);
        words[0] = both.x;
        words[1] = both.y;
      } else {
        words[0] = *entry;
      }
      scales_ = w4a16_scales<kMinima>(words);
    }
    if (step % kChunkSteps == 0) {
      const uint4 bits =
          *reinterpret_cast<const uint4*>(values_at_ + step / kChunkSteps * kW4a16Chunk);
      values_[0] = bits.x;
      values_[1] = bits.y;
      values_[2] = bits.z;
      values_[3] = bits.w;
    }
    unpack_groups<kBits, kMinima>(values_ + step % kChunkSteps * (kBits / 4), scales_, left);
  }

 private:
  static constexpr int kScaleWords = kMinima ? 2 : 1;
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  const unsigned char* scales_at_;
  const unsigned char* values_at_;
  int scale_rows_;
  W4a16Scales scales_{};
  uint32_t values_[4] = {};
};

}  // namespace packhorse::cuda
