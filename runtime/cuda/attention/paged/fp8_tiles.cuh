// Tiles of keys and values from pages in e4m3, for the kernel of many rows. Bytes are copied to
// shared memory as they lie in their page, and converted there once for all rows of a block.
//
// Pages hold anything past a sequence's end. Bytes and scales are read as zeros there, so that
// products with values are zeros; scores are masked.
#pragma once

#include "cuda/attention/paged/fp8_numbers.cuh"
#include "cuda/attention/paged/kernel.cuh"

namespace packhorse::cuda {

/// Starts copying eight bytes. Where not `inside`, zeros are written and nothing is read.
__device__ inline void copy_bytes_async(uint2* to, const void* from, bool inside) {
  cute::SM80_CP_ASYNC_CACHEALWAYS_ZFILL<uint64_t>::copy(*static_cast<const uint64_t*>(from),
                                                        *reinterpret_cast<uint64_t*>(to), inside);
}

template <int kDim, int kWarps>
struct Float8PagedTraits : PagedTraits<kDim, kWarps> {
  using Base = PagedTraits<kDim, kWarps>;
  /// Bytes and scales, [keys or values][even or odd tiles]; and the units of queries.
  struct Copied {
    uint2 bytes[2][2][Base::kKeys * kDim / kVectorSize];
    alignas(16) float scales[2][2][Base::kKeys];
    float units[Base::kRows];
  };
  static constexpr size_t kSharedBytes = (Base::kSlab + 2 * Base::kTile) * 2 + sizeof(Copied);
};

/// Counterpart of PagedTiles over pages in e4m3. A thread converts the bytes that it has copied
/// itself.
template <class T_, class Traits_>
struct Float8PagedTiles {
  using T = T_;
  using Operand = __half;
  using Traits = Traits_;
  using Copied = typename Traits::Copied;
  static constexpr int kDim = Traits::kDim;
  static constexpr int kKeys = Traits::kKeys;
  static constexpr int kAcross = kDim / kVectorSize;
  static_assert(kKeys * kAcross % Traits::kThreads == 0 && kKeys <= 4 * Traits::kThreads);

  const AttentionArgs& args;
  __half* const tiles;  // keys and values of the current tile, converted
  Copied& copied;

  __device__ Float8PagedTiles(const AttentionArgs& args, void* shared)
      : args(args),
        tiles(static_cast<__half*>(shared)),
        copied(*reinterpret_cast<Copied*>(tiles + 2 * Traits::kTile)) {}

  /// Converts the block's queries. row_at(row): a row's address, or null, for zeros. Neighbouring
  /// lanes have a row.
  template <class RowAt>
  __device__ void fetch_queries(__half* queries, RowAt row_at) const {
    static_assert(Traits::kRows * kAcross % Traits::kThreads == 0 && kAcross <= 32);
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x); at < Traits::kRows * kAcross;
         at += Traits::kThreads) {
      const int row = at / kAcross;
      const int column = at % kAcross * kVectorSize;
      const T* const from = column < args.head_dim ? row_at(row) : nullptr;
      float numbers[kVectorSize] = {};
      if (from != nullptr) load_vector(numbers, from + column);
      float largest = 0;
#pragma unroll
      for (const float number : numbers) largest = fmaxf(largest, fabsf(number));
#pragma unroll
      for (int mask = 1; mask < kAcross; mask *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, mask));
      }
      const PowerOfTwo power = power_for(largest);
      uint32_t pairs[kVectorSize / 2];
#pragma unroll
      for (int i = 0; i < kVectorSize / 2; ++i) {
        pairs[i] = half_pair(numbers[2 * i] * power.up, numbers[2 * i + 1] * power.up);
      }
      store_operands(queries + row * kPitch<kDim>, column, {pairs[0], pairs[1]},
                     {pairs[2], pairs[3]});
      copied.units[row] = power.down;
    }
  }

  __device__ void fetch(bool values, int tile, int64_t row, int valid) const {
    const auto* from =
        static_cast<const unsigned char*>(values ? args.pages.values.data : args.pages.keys.data) +
        row * args.head_dim;
    for_vectors([&](int at, int key, int column) {
      const bool inside = key < valid && column < args.head_dim;
      copy_bytes_async(&copied.bytes[values][tile % 2][at],
                       inside ? from + key * args.head_dim + column : from, inside);
    });
    const int key = static_cast<int>(threadIdx.x) * 4;
    if (key >= kKeys) return;
    const float* scales =
        static_cast<const float*>((values ? args.pages.value_scales : args.pages.key_scales).data) +
        row;
    copy_scales_async(&copied.scales[values][tile % 2][key], scales + key, valid - key);
  }
  __device__ void receive(bool values, int tile) const {
    __half* const to = at(values, tile);
    for_vectors([&](int at, int key, int column) {
      const uint2 bytes = copied.bytes[values][tile % 2][at];
      const uint2 left = unpack_float8(bytes.x), right = unpack_float8(bytes.y);
      __half* const row = to + key * kPitch<kDim>;
      if (values) {
        *reinterpret_cast<uint4*>(row + column) = {left.x, left.y, right.x, right.y};
      } else {
        store_operands(row, column, left, right);
      }
    });
  }
  __device__ __half* at(bool values, int /*tile*/) const {
    return tiles + (values ? Traits::kTile : 0);
  }
  template <int kBlocks>
  __device__ void scale_scores(int tile, float (&scores)[kBlocks][4]) const {
    const int row = static_cast<int>(threadIdx.x) / 32 * 16 + AccumulatorPlace().row;
    scale_float8_scores<QueriesByRows>(scores, copied.scales[0][tile % 2],
                                       {copied.units[row], copied.units[row + 8]});
  }
  template <int kBlocks>
  __device__ float2 scale_probabilities(int tile, float (&p)[kBlocks][4]) const {
    return scale_float8_probabilities<QueriesByRows>(p, copied.scales[1][tile % 2]);
  }
  template <int kBlocks>
  __device__ void restore(float (&output)[kBlocks][4], float2 units) const {
    multiply_rows(output, units);
  }

 private:
  /// Stores eight neighbouring columns, a multiple of eight and those after it, where operands have
  /// them: of each four, the first two in the first half of 16 columns and the others in the
  /// second.
  __device__ static void store_operands(__half* row, int column, uint2 left, uint2 right) {
    __half* const to = row + column / 16 * 16 + column % 16 / 2;
    *reinterpret_cast<uint2*>(to) = {left.x, right.x};
    *reinterpret_cast<uint2*>(to + 8) = {left.y, right.y};
  }

  /// Calls body(number, key, column) for this thread's vectors of a tile.
  template <class Body>
  __device__ static void for_vectors(Body body) {
#pragma unroll
    for (int i = 0; i < kKeys * kAcross / Traits::kThreads; ++i) {
      const int at = i * Traits::kThreads + static_cast<int>(threadIdx.x);
      body(at, at / kAcross, at % kAcross * kVectorSize);
    }
  }
};

}  // namespace packhorse::cuda
