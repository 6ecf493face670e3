// Epilogue of Hopper GEMMs, before results are rounded: bias and activation, the gate of a
// feed-forward block, and the rotation of heads.
//
// The functions compute pieces of 16 rows by 16 columns, of which a lane has eight values: value i
// lies in row lane / 4 + i / 2 % 2 * 8 and in column lane % 4 * 2 + i / 4 * 8 + i % 2.
#pragma once

#include <cutlass/numeric_conversion.h>

#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm90.hpp>

#include "cuda/common/rotation.cuh"
#include "cuda/gemm/sm90/traits.cuh"

namespace packhorse::cuda::sm90_gemm {

/// Computes piece g of stripe s and wgmma block b from the accumulators. Without a gate the result
/// is function(product + bias); with a gate it is multiplied by the next piece. `bias` holds this
/// lane's values for the stripe.
template <class Traits, class Accumulators, class Function>
__device__ void finish_piece(float (&values)[8], const Accumulators& acc, int s, int g, int b,
                             const float2* bias, const Function& function) {
  // `piece` counts the pieces of the product in the stripe.
  const auto with_bias = [&](int piece, int i) {
    const float2 pair = bias[piece * 2 + i / 4];
    return acc(s * Traits::kFolds * (Traits::kStripe / 2) + piece * 8 + i, b, 0) +
           (i % 2 == 0 ? pair.x : pair.y);
  };
  // Pieces alternate: one of the gate, then the one that it gates.
  static_assert(kGateBlock == 16, "the gate is one piece, the next what it is for");
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    values[i] = function(with_bias(Traits::kFolds * g, i));
    if constexpr (Traits::kGated) values[i] *= with_bias(2 * g + 1, i);
  }
}

/// Adds the residual, if any, that lies in a piece's place of the output buffer, rounds the piece
/// to 16 bits, and writes it there. `address`: the 16 bytes that this lane addresses for ldmatrix
/// and stmatrix.
template <class Traits>
__device__ void store_piece(float (&values)[8], cute::uint128_t& address) {
  using Out = typename Traits::Out;
  uint32_t packed[4];
  if constexpr (Traits::kResidual) {
    cute::SM75_U32x4_LDSM_N::copy(address, packed[0], packed[1], packed[2], packed[3]);
    cutlass::NumericArrayConverter<float, Out, 2> widen;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const auto pair = widen(reinterpret_cast<const cutlass::Array<Out, 2>&>(packed[q]));
      values[2 * q] += pair[0];
      values[2 * q + 1] += pair[1];
    }
  }
  cutlass::NumericArrayConverter<Out, float, 2> narrow;
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const auto pair = narrow(reinterpret_cast<const cutlass::Array<float, 2>&>(values[2 * q]));
    packed[q] = reinterpret_cast<const uint32_t&>(pair);
  }
  cute::SM90_U32x4_STSM_N::copy(packed[0], packed[1], packed[2], packed[3], address);
}

/// Rotation (RoPE) of a warpgroup's part of a tile. Columns 2 j and 2 j + 1 belong to one lane, so
/// a tile may begin anywhere in a head. In kernels that do not rotate, the functions do nothing.
template <class Traits>
struct TileRotation {
  float position[Traits::kBlocks][2];
  float frequency[Traits::kStripe / 8];
  bool turns;

  /// Loads the positions of this lane's rows.
  __device__ void load_rows(const GemmRotation& rotation, int first_row, int rows) {
    if constexpr (Traits::kRotated) {
#pragma unroll
      for (int i = 0; i < 2 * Traits::kBlocks; ++i) {
        const int row = first_row + i / 2 * 64 + i % 2 * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
        position[i / 2][i % 2] = row < rows ? rotation.positions[row] : 0.0f;
      }
    }
  }

  /// Loads the frequencies of this lane's columns in a stripe. A frequency of 0 leaves a pair of
  /// columns as it is.
  __device__ void load_stripe(const GemmRotation& rotation, int column) {
    if constexpr (Traits::kRotated) {
      turns = column < rotation.columns;
      if (!turns) return;
      int in_head = column % rotation.head_dim;
#pragma unroll
      for (int j = 0; j < Traits::kStripe / 8; ++j) {
        const int at = in_head + static_cast<int>(threadIdx.x) % 4 * 2;
        const bool turned = column + 8 * j < rotation.columns && at < rotation.dims;
        frequency[j] = turned ? __ldg(rotation.frequencies + at / 2) : 0.0f;
        in_head += 8;
        if (in_head >= rotation.head_dim) in_head -= rotation.head_dim;
      }
    }
  }

  /// Rotates the eight values of piece g of wgmma block b.
  __device__ void turn(float (&values)[8], int g, int b) const {
    if constexpr (Traits::kRotated) {
      if (!turns) return;
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        rotate(values[2 * q], values[2 * q + 1],
               cos_sin(position[b][q % 2], frequency[2 * g + q / 2]));
      }
    }
  }
};

}  // namespace packhorse::cuda::sm90_gemm
