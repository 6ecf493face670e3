// The weights of one head of compressed convolutional attention in shared memory.
#pragma once

#include "cuda/common/launch.cuh"
#include "cuda/common/vector.cuh"
#include "ops/args/cca.h"

namespace packhorse::cuda {

/// Weights for two taps in both convolutions and heads of D columns.
template <class T, int D>
struct CcaWeights {
  static constexpr int kSteps = D / 16;  // steps of 16 inputs, for each tap

  /// Operands of mma.sync by step of 16 inputs, 16 output columns and lane: the registers of two.
  uint4 grouped[2 * kSteps][D / 16][32];
  alignas(16) float depthwise[2][D];
  float depthwise_bias[D];
  float grouped_bias[D];
  float frequencies[D / 2];

  /// Swizzles the places of lanes' operands, so that the eight threads which write at once use all
  /// banks.
  __device__ static int swizzled(int lane) { return lane ^ (lane / 8 % 2 * 4); }

  /// Brings the weights of a head, by all kThreads threads of the block. A thread transposes four
  /// rows of eight columns at a time. It needs nothing that a kernel before writes.
  template <int kThreads>
  __device__ void bring(const CcaArgs& args, int head) {
    const T* const from =
        static_cast<const T*>(args.grouped.data) + static_cast<int64_t>(head) * 2 * D * D;
    constexpr int kPieces = 2 * D / 4 * (D / 8);
    constexpr int kAtOnce = kPieces >= 4 * kThreads ? 4 : kPieces >= 2 * kThreads ? 2 : 1;
    static_assert(kPieces % (kThreads * kAtOnce) == 0 || kPieces < kThreads);
#pragma unroll 1
    for (int first = 0; first < kPieces; first += kThreads * kAtOnce) {
      uint4 rows[kAtOnce][4];
      int step[kAtOnce], pair[kAtOnce], to_lane[kAtOnce];
#pragma unroll
      for (int p = 0; p < kAtOnce; ++p) {
        // Neighbouring threads: four places of lanes, then two neighbouring pieces of a row.
        const int piece = first + p * kThreads + static_cast<int>(threadIdx.x);
        if (kPieces < kThreads && piece >= kPieces) break;
        const int quad = piece % 4;
        const int unit = piece / 4 % (D / 8);      // unit of eight columns
        const int half = piece / 4 / (D / 8) % 2;  // half of a panel of inputs
        const int panel = piece / 8 / (D / 8);     // panel of inputs, over both taps
        const T* row = from + (panel * 32 + quad * 8 + half * 4) * D + unit * 8;
#pragma unroll
        for (int i = 0; i < 4; ++i) rows[p][i] = *reinterpret_cast<const uint4*>(row + i * D);
        step[p] = panel * 2 + half;
        pair[p] = unit / 4 * 2;
        to_lane[p] = unit % 4 * 8 + quad;
      }
#pragma unroll
      for (int p = 0; p < kAtOnce; ++p) {
        if (kPieces < kThreads && static_cast<int>(threadIdx.x) >= kPieces) break;
        const auto* r = reinterpret_cast<const uint32_t (*)[4]>(rows[p]);
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          // Columns 4 b to 4 b + 3 of the eight: two blocks of the product, even and odd columns.
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const uint32_t selector = e == 0 ? 0x5410 : 0x7632;
            uint4 bits;
            bits.x = __byte_perm(r[0][2 * b], r[1][2 * b], selector);
            bits.y = __byte_perm(r[2][2 * b], r[3][2 * b], selector);
            bits.z = __byte_perm(r[0][2 * b + 1], r[1][2 * b + 1], selector);
            bits.w = __byte_perm(r[2][2 * b + 1], r[3][2 * b + 1], selector);
            const int to = to_lane[p] + 4 * e;
            grouped[step[p]][pair[p] + b][swizzled(to)] = bits;
          }
        }
      }
    }
    const int64_t column = static_cast<int64_t>(head) * D;
    for (int c = threadIdx.x; c < D; c += kThreads) {
      depthwise[0][c] = args.depthwise[column + c];
      depthwise[1][c] = args.depthwise[args.mixed_columns() + column + c];
      depthwise_bias[c] = args.depthwise_bias[column + c];
      grouped_bias[c] = args.grouped_bias[column + c];
      if (2 * c < args.dims) frequencies[c] = args.frequencies[c];
    }
  }
};

}  // namespace packhorse::cuda
