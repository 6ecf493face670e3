// Tiles of keys and values from pages in e4m3, for the two kernels of attention over pages.
//
// Bytes are copied to shared memory as they lie in their page and converted to 16 bits there, from
// which the kernels continue as with 16-bit pages. A key's scale multiplies its scores, before they
// are scaled and masked; a value's scale multiplies the probabilities, in float32, after they were
// summed. Both kernels compute the same expressions, so they give the same bits.
//
// Pages hold anything past a sequence's end. Scales are read as zeros there, and bytes as finite
// numbers (unpack_float8 gives no NaN), so that their products are zeros.
#pragma once

#include "core/math.h"
#include "cuda/attention/paged/decode_tiles.cuh"
#include "cuda/common/float8.cuh"

namespace packhorse::cuda {

/// Starts copying eight bytes. Where not `inside`, zeros are written and nothing is read.
__device__ inline void copy_bytes_async(uint2* to, const void* from, bool inside) {
  cute::SM80_CP_ASYNC_CACHEALWAYS_ZFILL<uint64_t>::copy(*static_cast<const uint64_t*>(from),
                                                        *reinterpret_cast<uint64_t*>(to), inside);
}

/// Starts copying four scales, of which those from `count` on are not read and become zeros.
/// cp.async.cg bypasses the L1 cache: a line fetched for old tokens' scales would hold stale ones
/// for the tokens of this step.
__device__ inline void copy_scales_async(float* to, const float* from, int count) {
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const int bytes = max(0, min(4, count)) * static_cast<int>(sizeof(float));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes)
               : "memory");
}

/// Converts eight bytes to T, divided by kFloat8Unit<T> (unpack_float8).
template <class T>
__device__ uint4 unpack_vector(uint2 bytes) {
  const uint2 low = unpack_float8<T>(bytes.x);
  const uint2 high = unpack_float8<T>(bytes.y);
  return {low.x, low.y, high.x, high.y};
}

/// Multiplies this thread's scores or probabilities of a tile by `scales`, those of its keys or
/// values.
template <class T, int kBlocks>
__device__ void scale_keys(float (&x)[kBlocks][4], const float* scales) {
  const AccumulatorPlace place;
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    float2 scale = *reinterpret_cast<const float2*>(scales + n * 8 + place.column);
    scale.x = __fmul_rn(scale.x, kFloat8Unit<T>);
    scale.y = __fmul_rn(scale.y, kFloat8Unit<T>);
    x[n][0] = __fmul_rn(x[n][0], scale.x);
    x[n][1] = __fmul_rn(x[n][1], scale.y);
    x[n][2] = __fmul_rn(x[n][2], scale.x);
    x[n][3] = __fmul_rn(x[n][3], scale.y);
  }
}

template <int kDim, int kWarps>
struct Float8PagedTraits : PagedTraits<kDim, kWarps> {
  using Base = PagedTraits<kDim, kWarps>;
  /// Bytes and scales, [keys or values][even or odd tiles].
  struct Copied {
    uint2 bytes[2][2][Base::kKeys * kDim / kVectorSize];
    alignas(16) float scales[2][2][Base::kKeys];
  };
  static constexpr size_t kSharedBytes = (Base::kSlab + 2 * Base::kTile) * 2 + sizeof(Copied);
};

/// Counterpart of PagedTiles over pages in e4m3. A thread converts the bytes that it has copied
/// itself.
template <class T_, class Traits_>
struct Float8PagedTiles {
  using T = T_;
  using Traits = Traits_;
  using Copied = typename Traits::Copied;
  static constexpr int kDim = Traits::kDim;
  static constexpr int kKeys = Traits::kKeys;
  static constexpr int kAcross = kDim / kVectorSize;
  static_assert(kKeys * kAcross % Traits::kThreads == 0 && kKeys <= 4 * Traits::kThreads);

  const AttentionArgs& args;
  T* const tiles;  // keys and values of the current tile, converted
  Copied& copied;

  __device__ Float8PagedTiles(const AttentionArgs& args, void* shared)
      : args(args),
        tiles(static_cast<T*>(shared)),
        copied(*reinterpret_cast<Copied*>(tiles + 2 * Traits::kTile)) {}

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
    T* const to = at(values, tile);
    for_vectors([&](int at, int key, int column) {
      *reinterpret_cast<uint4*>(to + key * kPitch<kDim> + column) =
          unpack_vector<T>(copied.bytes[values][tile % 2][at]);
    });
  }
  __device__ T* at(bool values, int /*tile*/) const { return tiles + (values ? Traits::kTile : 0); }
  template <int kBlocks>
  __device__ void scale(bool values, int tile, float (&x)[kBlocks][4]) const {
    scale_keys<T>(x, copied.scales[values][tile % 2]);
  }

 private:
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

template <int kDim, int kRows>
struct Float8DecodeTraits : DecodeTraits<kDim, kRows> {
  using Base = DecodeTraits<kDim, kRows>;
  /// Scales of each warp's tile.
  struct alignas(16) Scales {
    float keys[Base::kWarps][Base::kKeys];
    float values[Base::kWarps][Base::kKeys];
  };
  static constexpr size_t kScalesAt = round_up(Base::kSharedBytes, 16);  // offset in shared memory
  static constexpr size_t kSharedBytes = kScalesAt + sizeof(Scales);
  static constexpr bool kTmaHelps = false;
  static constexpr bool kTma = false;
  static constexpr int kBlocks =
      static_cast<int>(std::min(size_t{3}, size_t{228 * 1024} / (kSharedBytes + 1024)));
  static_assert(kBlocks > 0);
};

/// Counterpart of DecodeTiles over pages in e4m3, which hold the tokens of this step already. Keys,
/// and after them values, are converted to 16 bits in the first half of a warp's memory; the second
/// half holds the bytes of both, so that the next tile can be copied meanwhile.
template <class T_, class Traits_>
struct Float8DecodeTiles : WarpTiles<T_, Traits_> {
  using T = T_;
  using Traits = Traits_;
  using Warp = WarpTiles<T, Traits>;
  using Warp::first_key;
  using Warp::has_keys;
  using Warp::has_new;
  using Warp::kAcross;
  using Warp::keys;
  using Warp::lane;
  using Warp::page_row;
  using Warp::params;
  using Warp::values;
  using Warp::warp;
  static constexpr int kDim = Traits::kDim;
  static constexpr int kKeys = Traits::kKeys;
  static constexpr int kCopied = 16;  // bytes at a time

  unsigned char* const bytes;  // this warp's keys, then its values, as their pages hold them
  typename Traits::Scales& all_scales;

  __device__ Float8DecodeTiles(const DecodeKernelParams& params, unsigned char* shared)
      : Warp(params, shared),
        bytes(reinterpret_cast<unsigned char*>(values)),
        all_scales(*reinterpret_cast<typename Traits::Scales*>(shared + Traits::kScalesAt)) {
    values = keys;
  }

  __device__ void copy_old(const DecodeWork& work, int page, bool of_keys) const {
    if (!has_keys(work)) return;
    const int old = old_rows(work);
    copy(work, page, of_keys, 0, old * params.args.head_dim / kCopied * kCopied);
    copy_scales(work, page, of_keys, 0, old / 4 * 4);
  }
  __device__ void copy_new(const DecodeWork& work, int page) const {
    if (!has_keys(work) || !has_new(work)) return;
    const int old = old_rows(work);
    const int end = min(kKeys, work.slab.kv_length - first_key(work));
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      const bool of_keys = part == 0;
      copy(work, page, of_keys, old * params.args.head_dim / kCopied * kCopied,
           end * params.args.head_dim);
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
    receive(true);
  }
  __device__ void await_values() const {
    cute::cp_async_wait<1>();
    receive(false);
  }
  template <int kBlocks>
  __device__ void scale(bool of_keys, float (&x)[kBlocks][4]) const {
    scale_keys<T>(x, scales(of_keys));
  }
  __device__ void store_new(const DecodeWork& /*work*/, int /*page*/) const {}

 private:
  __device__ float* scales(bool of_keys) const {
    return of_keys ? all_scales.keys[warp] : all_scales.values[warp];
  }
  __device__ unsigned char* tile_bytes(bool of_keys) const {
    return bytes + (of_keys ? 0 : Traits::kTile);
  }

  /// Returns how many rows of this warp's tile are older than this step.
  __device__ int old_rows(const DecodeWork& work) const {
    return max(0, min(kKeys, work.slab.position - first_key(work)));
  }

  /// Starts copying bytes [begin, end) of this warp's tile, whose rows lie side by side in their
  /// page. A 16-byte piece with bytes of old and of new rows counts as new.
  __device__ void copy(const DecodeWork& work, int page, bool of_keys, int begin, int end) const {
    const AttentionArgs& args = params.args;
    const auto* from =
        static_cast<const unsigned char*>(of_keys ? args.pages.keys.data : args.pages.values.data) +
        page_row(work, page) * args.head_dim;
    unsigned char* const to = tile_bytes(of_keys);
    if (end - begin == kKeys * kDim) {  // nearly every tile
#pragma unroll
      for (int i = 0; i < kKeys * kDim; i += 32 * kCopied) {
        copy_vector_async(to + lane * kCopied + i, from + lane * kCopied + i);
      }
      return;
    }
#pragma unroll 1
    for (int at = begin + lane * kCopied; at < end; at += 32 * kCopied) {
      copy_vector_async(to + at, from + at, true);
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
    copy_scales_async(scales(of_keys) + key, from + key,
                      work.slab.kv_length - first_key(work) - key);
  }

  /// Converts the bytes of keys, or of values, to 16-bit numbers; columns past the head's end are
  /// zeros.
  __device__ void receive(bool of_keys) const {
    const unsigned char* from = tile_bytes(of_keys);
    const int head_dim = params.args.head_dim;
    const auto unpack = [](T* to, const unsigned char* from, int = 0) {
      *reinterpret_cast<uint4*>(to) = unpack_vector<T>(*reinterpret_cast<const uint2*>(from));
    };
    __syncwarp();
    if (head_dim == kDim) {
      this->for_whole_tile(keys, from, unpack);
    } else {
      const int column = lane % kAcross * kVectorSize;
#pragma unroll 1
      for (int key = lane / kAcross; key < kKeys; key += Warp::kRowsAtOnce) {
        T* const to = keys + tile_place<kKeys>(key, column);
        if (column < head_dim) {
          unpack(to, from + key * head_dim + column);
        } else {
          *reinterpret_cast<uint4*>(to) = {};
        }
      }
    }
    __syncwarp();
  }
};

}  // namespace packhorse::cuda
