// Epilogue of Hopper GEMMs with e4m3 operands: the sums are multiplied by the scales of their rows
// and columns before bias and activation, and results may be rounded to e4m3. The rest is the
// epilogue of 16-bit GEMMs (gemm/sm90/epilogue.cuh, which says which elements of a piece each lane
// has).
#pragma once

#include "cuda/common/float8.cuh"
#include "cuda/gemm/sm90/epilogue.cuh"

namespace packhorse::cuda::sm90_gemm {

/// Scales and biases of a warpgroup's part of a tile. Those of columns are held for kChunk columns
/// of the product at a time, because accumulators leave no registers for more. In kernels with
/// 16-bit operands load_rows does nothing, and nothing else is called.
template <class Traits>
struct TileScales {
  static constexpr int kStripeColumns = Traits::kFolds * Traits::kStripe;  // columns of the product
  static constexpr int kChunk = kStripeColumns < 32 ? kStripeColumns : 32;
  static constexpr int kChunks = kStripeColumns / kChunk;
  static constexpr int kPieces = kChunk / 16 / Traits::kFolds;  // pieces of the result in a chunk

  float row[Traits::kFloat8 ? Traits::kBlocks : 1][2];
  float2 scale[Traits::kFloat8 ? kChunk / 8 : 1];
  float2 bias[Traits::kFloat8 ? kChunk / 8 : 1];

  /// Loads the scales of this lane's rows, of which `rows` exist.
  __device__ void load_rows(const GemmFloat8& args, int first_row, int rows) {
    if constexpr (Traits::kFloat8) {
#pragma unroll
      for (int i = 0; i < 2 * Traits::kBlocks; ++i) {
        const int at = first_row + i / 2 * 64 + i % 2 * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
        row[i / 2][i % 2] = args.row_scales == nullptr ? args.a_scale
                            : at < rows                ? args.row_scales[at]
                                                       : 0.0f;
      }
    }
  }

  /// Loads the scales and biases of this lane's columns in the chunk that begins at `column`.
  __device__ void load_columns(const GemmFloat8& args, const float* biases, int n, int column) {
#pragma unroll
    for (int j = 0; j < kChunk / 8; ++j) {
      const int at = column + 8 * j + static_cast<int>(threadIdx.x) % 4 * 2;
      scale[j] = bias[j] = make_float2(0, 0);
      if (at >= n) continue;
      scale[j] = __ldg(reinterpret_cast<const float2*>(args.column_scales + at));
      if (biases != nullptr) bias[j] = __ldg(reinterpret_cast<const float2*>(biases + at));
    }
  }

  /// Computes piece g of chunk c of stripe s and wgmma block b from the sums, as finish_piece does.
  template <class Accumulators, class Function>
  __device__ void finish_piece(float (&values)[8], const Accumulators& acc, int s, int c, int g,
                               int b, const Function& function) const {
    // `piece` counts the pieces of the product in the chunk.
    const auto scaled = [&](int piece, int i) {
      const int first = s * (kStripeColumns / 2) + c * (kChunk / 2) + piece * 8;
      const float2 factor = scale[piece * 2 + i / 4];
      const float2 added = bias[piece * 2 + i / 4];
      return fmaf(acc(first + i, b, 0) * row[b][i / 2 % 2], i % 2 == 0 ? factor.x : factor.y,
                  i % 2 == 0 ? added.x : added.y);
    };
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[i] = function(scaled(Traits::kFolds * g, i));
      if constexpr (Traits::kGated) values[i] *= scaled(2 * g + 1, i);
    }
  }
};

/// Rounds piece `piece` of a stripe and writes it to the stripe's buffer: multiplied by `factor`
/// and rounded to e4m3, or as store_piece does.
template <class Traits>
__device__ void store_scaled_piece(float (&values)[8], float factor, typename Traits::Out* buffer,
                                   int piece) {
  constexpr int kBytes = Traits::kStripeBytes;
  const int lane = threadIdx.x % 32;
  auto* bytes = reinterpret_cast<unsigned char*>(buffer);
  if constexpr (Traits::kFloat8Out) {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int row = lane / 4 + q % 2 * 8;
      *reinterpret_cast<uint16_t*>(bytes + row * kBytes + swizzled_chunk(row, piece, kBytes) * 16 +
                                   q / 2 * 8 + lane % 4 * 2) =
          pack_float8(values[2 * q] * factor, values[2 * q + 1] * factor);
    }
  } else {
    const int row = lane % 16;
    const int chunk = swizzled_chunk(row, 2 * piece + lane / 16, kBytes);
    store_piece<Traits>(values,
                        *reinterpret_cast<cute::uint128_t*>(bytes + row * kBytes + chunk * 16));
  }
}

}  // namespace packhorse::cuda::sm90_gemm
