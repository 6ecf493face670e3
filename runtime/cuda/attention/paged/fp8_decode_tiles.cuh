// Copies of keys and values in e4m3 to shared memory for paged_decode_kernel, each warp its own
// tile, and products with them: bytes are copied as they lie in their page, and become operands in
// registers.
//
// Pages hold anything past a sequence's end. Scales are read as zeros there, and values are
// cleared, so that their products are zeros; scores are masked.
#pragma once

#include "core/math.h"
#include "cuda/attention/paged/decode_tiles.cuh"
#include "cuda/attention/paged/fp8_numbers.cuh"

namespace packhorse::cuda {

template <int kDim, int kRows>
struct Float8DecodeTraits : DecodeTraits<kDim, kRows, 1> {
  using Base = DecodeTraits<kDim, kRows, 1>;
  /// Scales of each warp's tile.
  struct alignas(16) Scales {
    float keys[Base::kWarps][Base::kKeys];
    float values[Base::kWarps][Base::kKeys];
  };
  static constexpr size_t kScalesAt = round_up(Base::kSharedBytes, 16);  // offset in shared memory
  static constexpr size_t kSharedBytes = kScalesAt + sizeof(Scales);
  static constexpr bool kTmaHelps = false;
  static constexpr bool kTma = false;
  /// Blocks per SM. More would leave a thread too few registers.
  static constexpr size_t kMostBlocks = kDim > 64 ? 4 : kRows == 8 ? 3 : 2;
  static constexpr int kBlocks =
      static_cast<int>(std::min(kMostBlocks, size_t{228 * 1024} / (kSharedBytes + 1024)));
  static_assert(kBlocks > 0);
};

/// Counterpart of DecodeTiles over pages in e4m3, which hold the tokens of this step already. A
/// warp's tiles are bytes, in which 16 columns of eight rows lie in different banks.
template <class T_, class Traits_>
struct Float8DecodeTiles : WarpTiles<T_, Traits_, unsigned char> {
  using T = T_;
  using Traits = Traits_;
  using Warp = WarpTiles<T, Traits, unsigned char>;
  using Warp::first_key;
  using Warp::has_keys;
  using Warp::has_new;
  using Warp::keys;
  using Warp::kSets;
  using Warp::lane;
  using Warp::page_row;
  using Warp::params;
  using Warp::values;
  using Warp::warp;
  static constexpr int kDim = Traits::kDim;
  static constexpr int kKeys = Traits::kKeys;
  static constexpr int kPiece = 16;                 // bytes copied at a time
  static constexpr int kAcross = kDim / kPiece;     // pieces of a row
  static constexpr int kRowsAtOnce = 32 / kAcross;  // rows of a tile that a warp copies at once

  typename Traits::Scales& all_scales;

  __device__ Float8DecodeTiles(const DecodeKernelParams& params, unsigned char* shared)
      : Warp(params, shared),
        all_scales(*reinterpret_cast<typename Traits::Scales*>(shared + Traits::kScalesAt)) {
    // Copies leave out columns past the head's end, and 0 x NaN would be NaN there.
    if (params.args.head_dim < kDim) clear(keys, 0, kKeys);
    __syncwarp();
  }

  __device__ void copy_old(const DecodeWork& work, int page, bool of_keys) const {
    if (!has_keys(work)) return;
    const int old = old_rows(work);
    copy(work, page, of_keys, !has_new(work), 0, old);
    copy_scales(work, page, of_keys, 0, old / 4 * 4);
  }
  __device__ void copy_new(const DecodeWork& work, int page) const {
    if (!has_keys(work) || !has_new(work)) return;
    const int old = old_rows(work);
    const int end = min(kKeys, work.slab.kv_length - first_key(work));
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      const bool of_keys = part == 0;
      copy(work, page, of_keys, false, old, end);
      copy_scales(work, page, of_keys, old / 4 * 4, kKeys);
    }
  }
  __device__ void end_group() const { cute::cp_async_fence(); }

  __device__ void await_keys(const DecodeWork& work, int /*page*/) const {
    if (has_new(work)) {
      cute::cp_async_wait<0>();
    } else {
      cute::cp_async_wait<1>();
    }
    __syncwarp();
  }
  __device__ void await_values(const DecodeWork& work) const {
    cute::cp_async_wait<1>();
    const int end = work.slab.kv_length - first_key(work);
    if (end < kKeys) clear(values, end, kKeys);
    __syncwarp();
  }
  __device__ void store_new(const DecodeWork& /*work*/, int /*page*/) const {}

  /// Operands of the queries, as A operands have them, and the units of this thread's rows of
  /// results.
  struct Queries {
    Fragment x[kDim / 16];
    float2 units[kSets];
  };
  /// The first of the two neighbouring columns of queries that this lane has of block `block` of
  /// eight.
  __device__ static int query_column(int block) {
    return block / 2 * 16 + AccumulatorPlace().column * 2 + block % 2 * 2;
  }
  __device__ static void convert_queries(Queries& queries) {
    using Pair = typename Element<T>::Pair;
    const int first = OutputPlace().row * 4;  // the lane that has this thread's first row
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      const auto numbers = [&](int i) {  // pair i of the row
        return to_float2(*reinterpret_cast<const Pair*>(&queries.x[i / 2].x[i % 2 * 2 + set]));
      };
      float largest = 0;
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i) {
        const float2 pair = numbers(i);
        largest = fmaxf(largest, fmaxf(fabsf(pair.x), fabsf(pair.y)));
      }
      const PowerOfTwo power = power_for(quad_max(largest));
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i) {
        const float2 pair = numbers(i);
        queries.x[i / 2].x[i % 2 * 2 + set] = half_pair(pair.x * power.up, pair.y * power.up);
      }
      queries.units[set] = {__shfl_sync(kFullWarp, power.down, first),
                            __shfl_sync(kFullWarp, power.down, first + 4)};
    }
  }

  using Scores = typename Warp::Scores;
  using Output = typename Warp::Output;
  /// The place of a thread's results: columns of a block are neighbours.
  struct OutputPlace {
    static constexpr int kRowStep = 1, kColumnStep = 1, kBlockStep = 16;
    int row = static_cast<int>(threadIdx.x) % 4 * 2;
    int column = static_cast<int>(threadIdx.x) % 32 / 4 * 2;
  };

  /// Sets `scores` to queries times keys.
  __device__ void multiply_keys(const Queries& queries, Scores& scores) const {
    Scores products = {};
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
      for (int n = 0; n < kKeys / 32; ++n) {
        const Fragment bytes = load_fragment(keys + place(lane, k) + n * 32 * kDim);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint2 upper = unpack_float8(bytes.x[2 * i]);
          const uint2 lower = unpack_float8(bytes.x[2 * i + 1]);
          const Fragment a = {upper.x, lower.x, upper.y, lower.y};
#pragma unroll
          for (int set = 0; set < kSets; ++set) {
            mma<__half>(products[set][2 * n + i], a, queries.x[k].x[set], queries.x[k].x[2 + set]);
          }
        }
      }
    }
    Warp::by_rows(products, scores);
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      scale_float8_scores<KeysByRows>(scores[set], all_scales.keys[warp], queries.units[set]);
    }
  }

  /// Sets `output` to probabilities times values. Scales the probabilities.
  __device__ void multiply_values(Scores& p, Output& output) const {
    float2 units[kSets];
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      units[set] = scale_float8_probabilities<KeysByRows>(p[set], all_scales.values[warp]);
    }
    const auto operands = Warp::template row_operands<__half>(p);
    Output products = {};
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
      for (int n = 0; n < kDim / 32; ++n) {
        const Fragment bytes =
            load_fragment_transposed(values + place(lane % 16, 2 * n + lane / 16) + k * 16 * kDim);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          // A register has two columns of two keys; an operand, two keys of a column. Even columns
          // are the upper half of its rows.
          const uint2 first = unpack_float8(__byte_perm(bytes.x[2 * i], 0, 0x3120));
          const uint2 second = unpack_float8(__byte_perm(bytes.x[2 * i + 1], 0, 0x3120));
          const Fragment a = {first.x, first.y, second.x, second.y};
#pragma unroll
          for (int set = 0; set < kSets; ++set) {
            mma<__half>(products[set][2 * n + i], a, operands.x[set][2 * k],
                        operands.x[set][2 * k + 1]);
          }
        }
      }
    }
    Warp::by_rows(products, output);
#pragma unroll
    for (int set = 0; set < kSets; ++set) multiply_rows(output[set], units[set]);
  }

 private:
  /// The offset of a piece in a tile.
  __device__ static int place(int row, int piece) {
    return row * kDim + swizzled_chunk(row, piece, std::min(kDim, 128)) * kPiece;
  }

  /// Returns how many rows of this warp's tile are older than this step.
  __device__ int old_rows(const DecodeWork& work) const {
    return max(0, min(kKeys, work.slab.position - first_key(work)));
  }

  /// Clears rows [begin, end) of a tile.
  __device__ void clear(unsigned char* tile, int begin, int end) const {
#pragma unroll 1
    for (int at = begin * kAcross + lane; at < end * kAcross; at += 32) {
      *reinterpret_cast<uint4*>(tile + at * kPiece) = {};
    }
  }

  /// Starts copying rows [begin, end) of this warp's tile. `whole`: they are all of its rows.
  __device__ void copy(const DecodeWork& work, int page, bool of_keys, bool whole, int begin,
                       int end) const {
    const AttentionArgs& args = params.args;
    const auto* from =
        static_cast<const unsigned char*>(of_keys ? args.pages.keys.data : args.pages.values.data) +
        page_row(work, page) * args.head_dim;
    unsigned char* const to = of_keys ? keys : values;
    if (!whole || args.head_dim < kDim) return copy_rows(from, to, begin, end);
    // Nearly every tile. The swizzle repeats after eight rows, so addresses differ by constants.
#pragma unroll
    for (int first = 0; first < 8; first += kRowsAtOnce) {
      unsigned char* const rows = to + place(lane / kAcross + first, lane % kAcross);
#pragma unroll
      for (int i = 0; i < kKeys; i += 8) {
        copy_vector_async(rows + i * kDim, from + lane * kPiece + (first + i) * kDim);
      }
    }
  }

  /// Starts copying some rows, or copies them, where they are not multiples of kPiece bytes.
  __device__ void copy_rows(const unsigned char* from, unsigned char* to, int begin,
                            int end) const {
    const int head_dim = params.args.head_dim;
    const bool in_pieces = head_dim % kPiece == 0;
    const int width = in_pieces ? kPiece : kVectorSize;
#pragma unroll 1
    for (int at = begin * head_dim + lane * width; at < end * head_dim; at += 32 * width) {
      const int row = at / head_dim;
      const int column = at % head_dim;
      unsigned char* const there = to + place(row, column / kPiece) + column % kPiece;
      if (in_pieces) {
        copy_vector_async(there, from + at);
      } else {  // cp.async of eight bytes would leave lines in the L1 cache
        *reinterpret_cast<uint2*>(there) = __ldcg(reinterpret_cast<const uint2*>(from + at));
      }
    }
  }

  /// Starts copying the scales of keys [begin, end), both multiples of four; pieces with old and
  /// new ones count as new. Scales past the sequence's end become zeros.
  __device__ void copy_scales(const DecodeWork& work, int page, bool of_keys, int begin,
                              int end) const {
    const AttentionArgs& args = params.args;
    const float* from = static_cast<const float*>(
                            (of_keys ? args.pages.key_scales : args.pages.value_scales).data) +
                        page_row(work, page);
    const int key = begin + lane * 4;
    if (key >= end) return;
    float* const to = of_keys ? all_scales.keys[warp] : all_scales.values[warp];
    copy_scales_async(to + key, from + key, work.slab.kv_length - first_key(work) - key);
  }
};

}  // namespace packhorse::cuda
