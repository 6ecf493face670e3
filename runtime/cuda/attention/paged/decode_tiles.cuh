// Copies of keys and values to shared memory for paged_decode_kernel, each warp its own tile, and
// products with them.
//
// On Hopper one lane has TMA (the Tensor Memory Accelerator) copy a whole tile of large heads from
// its page, and the tokens of this step are written over it afterwards. Elsewhere, and for small
// heads, whose tiles would arrive later by TMA, all lanes copy by cp.async, the tokens of this step
// from where they were computed.
#pragma once

#include <algorithm>
#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/attention/paged/schedule.cuh"
#include "cuda/common/pipeline_sm90.cuh"

namespace packhorse::cuda {

/// Parameters of paged_decode_kernel. The tensor maps are for TMA: the pages as matrices [pages *
/// Hkv * kPageTokens, d], in boxes of 64 columns of a tile.
struct DecodeKernelParams : PagedKernelParams {
  CUtensorMap key_map, value_map;
};

/// kRows: rows of a slab, 8 or 16. kElementBytes: bytes of a number in shared memory, as in pages.
template <int kDim_, int kRows_, int kElementBytes_ = 2>
struct DecodeTraits {
  static constexpr int kDim = kDim_;
  static constexpr int kRows = kRows_;
  static constexpr int kElementBytes = kElementBytes_;
  static constexpr int kWarps = kChunkTiles<kDim>;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kKeys = kTileKeys<kDim>;
  static constexpr int kTile = kKeys * kDim;
  /// Results of the warps for their tiles, before the block merges them.
  struct Found {
    float sums[kWarps][kRows * kDim];
    float2 state[kWarps][kRows];  // maximum and sum of each row
    uint64_t keys_here[kWarps];   // mbarriers of the copies by TMA
    uint64_t values_here[kWarps];
    unsigned shares;  // bit set of the shares of the merge that are this block's
  };
  static constexpr size_t kFoundAt = 2 * kWarps * kTile * kElementBytes;  // offset
  static constexpr size_t kSharedBytes = kFoundAt + sizeof(Found);
  /// `kTmaHelps`: tiles of this size arrive sooner by TMA. `kTma`: the device has TMA as well, so
  /// it is used.
  static constexpr bool kTmaHelps = kDim > 64;
#if __CUDA_ARCH__ >= 900
  static constexpr bool kTma = kTmaHelps;
#else
  static constexpr bool kTma = false;
#endif
  /// Blocks per SM: as many as Hopper's 228 KiB of shared memory hold (other devices run fewer). A
  /// third block of small heads would leave a thread too few registers.
  static constexpr int kBlocks = static_cast<int>(
      std::min(size_t{kTmaHelps ? 3 : 2}, size_t{228 * 1024} / (kSharedBytes + 1024)));
  static_assert(kBlocks > 0);
};

/// Returns the index of element (row, column) in a tile of kKeys rows. Panels of 64 columns follow
/// one another, in the 128-byte swizzle of TMA (CUDA driver API, CU_TENSOR_MAP_SWIZZLE_128B), so
/// that the eight rows that ldmatrix reads at once lie in different banks.
template <int kKeys>
__device__ int tile_place(int row, int column) {
  // Masks instead of remainders save instructions: the compiler does not know that rows and columns
  // are not negative.
  return (column >> 6) * (kKeys * 64) + row * 64 + ((column & 63) ^ ((row & 7) * kVectorSize));
}

/// A warp's tile of keys and values, whatever the dtype of the pages. T: of the activations.
/// Cached: of the pages, and of the tile.
template <class T_, class Traits_, class Cached>
struct WarpTiles {
  using T = T_;
  using Traits = Traits_;
  static constexpr int kDim = Traits::kDim;
  static constexpr int kKeys = Traits::kKeys;
  static_assert(sizeof(Cached) == Traits::kElementBytes);

  /// Accumulators of a warp: sets of eight rows, and blocks of four in each, of which a thread has
  /// two rows. KeysByRows says which rows and keys, and OutputPlace of a derived class which
  /// columns.
  static constexpr int kSets = Traits::kRows / 8;
  using Scores = float[kSets][kKeys / 16][4];
  using Output = float[kSets][kDim / 16][4];

  const DecodeKernelParams& params;
  Cached* const keys;    // this warp's tile of keys
  Cached* const values;  // this warp's tile of values
  typename Traits::Found& found;
  int warp = static_cast<int>(threadIdx.x) / 32;
  int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t phase = 0;  // parity of the mbarriers' phase that the next tile completes

  __device__ WarpTiles(const DecodeKernelParams& params, unsigned char* shared)
      : params(params),
        keys(reinterpret_cast<Cached*>(shared) + 2 * (threadIdx.x / 32) * Traits::kTile),
        values(keys + Traits::kTile),
        found(*reinterpret_cast<typename Traits::Found*>(shared + Traits::kFoundAt)) {}

  /// The first key of this warp's tile.
  __device__ int first_key(const DecodeWork& work) const {
    return work.chunk * kChunkKeys<kDim> + work.tile * kKeys;
  }
  /// The page of this warp's tile; 0 past the sequence's end.
  __device__ int page_of(const DecodeWork& work) const {
    const int first = first_key(work);
    const AttentionArgs& args = params.args;
    const int32_t* table =
        args.pages.table + static_cast<int64_t>(work.slab.sequence) * args.pages.table_stride;
    return first < work.slab.kv_length ? table[first / static_cast<int>(kPageTokens)] : 0;
  }
  /// Returns whether this warp's tile has any keys.
  __device__ bool has_keys(const DecodeWork& work) const {
    return first_key(work) < work.slab.kv_length;
  }
  /// Returns whether this warp's tile has tokens of this step.
  __device__ bool has_new(const DecodeWork& work) const {
    return first_key(work) + kKeys > work.slab.position;
  }

  /// Brings products to the order of two rows, which are their columns.
  template <int kBlocks>
  __device__ static void by_rows(const float (&products)[kSets][kBlocks][4],
                                 float (&rows)[kSets][kBlocks][4]) {
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) rows[set][n][e] = products[set][n][e % 2 * 2 + e / 2];
      }
    }
  }
  /// B operands of probabilities: registers of eight keys each.
  struct RowOperands {
    uint32_t x[kSets][kKeys / 8];
  };
  template <class Operand>
  __device__ static RowOperands row_operands(const Scores& p) {
    RowOperands operands;
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        const auto pair = Element<Operand>::pair(p[set][n / 2][n % 2], p[set][n / 2][2 + n % 2]);
        operands.x[set][n] = transpose_matrix(*reinterpret_cast<const uint32_t*>(&pair));
      }
    }
    return operands;
  }

  /// The first row of this warp's tile in the pages as a matrix [pages * Hkv * kPageTokens, d].
  __device__ int64_t page_row(const DecodeWork& work, int page) const {
    constexpr int kTokens = static_cast<int>(kPageTokens);
    const int64_t head = static_cast<int64_t>(page) * params.args.num_kv_heads + work.slab.kv_head;
    return head * kTokens + first_key(work) % kTokens;
  }
};

/// Tiles over a cache whose dtype is the activations' (T).
template <class T_, class Traits_>
struct DecodeTiles : WarpTiles<T_, Traits_, T_> {
  using T = T_;
  using Traits = Traits_;
  using Warp = WarpTiles<T, Traits, T>;
  using Warp::first_key;
  using Warp::found;
  using Warp::has_keys;
  using Warp::has_new;
  using Warp::keys;
  using Warp::kSets;
  using Warp::lane;
  using Warp::page_row;
  using Warp::params;
  using Warp::phase;
  using Warp::values;
  using Warp::warp;
  static constexpr int kDim = Traits::kDim;
  static constexpr int kKeys = Traits::kKeys;
  static constexpr int kAcross = kDim / kVectorSize;
  static constexpr int kRowsAtOnce = 32 / kAcross;  // rows of a tile that a warp copies at once

  __device__ DecodeTiles(const DecodeKernelParams& params, unsigned char* shared)
      : Warp(params, shared) {
    if constexpr (Traits::kTma) {
      if (lane == 0) {
        sm90::TxBarrier::init(&found.keys_here[warp], 1);
        sm90::TxBarrier::init(&found.values_here[warp], 1);
        cutlass::arch::fence_barrier_init();
      }
      __syncwarp();
    }
  }

  /// Starts copying this warp's tile of keys or values: rows older than this step, or all by TMA.
  __device__ void copy_old(const DecodeWork& work, int page, bool of_keys) const {
    if (!has_keys(work)) return;
    if constexpr (Traits::kTma) {
      if (lane == 0) copy_by_tma(work, page, of_keys);
    } else {
      copy_by_lanes(work, page, of_keys);
    }
  }

  /// Starts copying the tokens of this step, after copy_old of keys and of values.
  __device__ void copy_new(const DecodeWork& work, int page) const {
    if constexpr (!Traits::kTma) {
      if (has_new(work)) copy_both_new(work, page);
    }
  }

  /// Ends a cp.async group: the old keys are one group, the rest of the tile is the next.
  __device__ void end_group() const {
    if constexpr (!Traits::kTma) cute::cp_async_fence();
  }

  __device__ void await_keys(const DecodeWork& work, int page) const {
    if constexpr (Traits::kTma) {
      sm90::TxBarrier::wait(&found.keys_here[warp], phase);
      if (has_new(work)) put_new(work, page);
    } else {
      if (has_new(work)) {
        cute::cp_async_wait<0>();
      } else {
        cute::cp_async_wait<1>();
      }
      __syncwarp();
    }
  }
  /// Waits for the values. Copies of the next tile's keys may be under way already.
  __device__ void await_values(const DecodeWork& /*work*/) const {
    if constexpr (Traits::kTma) {
      sm90::TxBarrier::wait(&found.values_here[warp], phase);
    } else {
      cute::cp_async_wait<1>();
      __syncwarp();
    }
  }

  /// Operands of the queries, as A operands have them.
  struct Queries {
    Fragment x[kDim / 16];
  };
  /// The first of the two neighbouring columns of queries that this lane has of block `block` of
  /// eight.
  __device__ static int query_column(int block) { return block * 8 + AccumulatorPlace().column; }
  /// Does nothing: queries are operands as they are.
  __device__ static void convert_queries(Queries& /*queries*/) {}

  using Scores = typename Warp::Scores;
  using Output = typename Warp::Output;
  using OutputPlace = KeysByRows;  // columns, where it says keys

  /// Sets `scores` to queries times keys.
  __device__ void multiply_keys(const Queries& queries, Scores& scores) const {
    Scores products = {};
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        const Fragment a = load_keys(n * 16, k * 16);
#pragma unroll
        for (int set = 0; set < kSets; ++set) {
          mma<T>(products[set][n], a, queries.x[k].x[set], queries.x[k].x[2 + set]);
        }
      }
    }
    Warp::by_rows(products, scores);
  }

  /// Sets `output` to probabilities times values.
  __device__ void multiply_values(const Scores& p, Output& output) const {
    const auto operands = Warp::template row_operands<T>(p);
    Output products = {};
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {
        const Fragment a = load_values(k * 16, n * 16);
#pragma unroll
        for (int set = 0; set < kSets; ++set) {
          mma<T>(products[set][n], a, operands.x[set][2 * k], operands.x[set][2 * k + 1]);
        }
      }
    }
    Warp::by_rows(products, output);
  }

  /// Writes the tokens of this step to their page, which no other sequence has.
  __device__ void store_new(const DecodeWork& work, int page) const {
    const AttentionArgs& args = params.args;
    if (!has_new(work) || args.k.data == nullptr || work.slab.row > 0) return;
    T* const keys = page_rows(work, page, static_cast<T*>(args.pages.keys.data));
    T* const values = page_rows(work, page, static_cast<T*>(args.pages.values.data));
    for_new(work, page, [&](int row, int column, const T* key, const T* value) {
      if (column >= args.head_dim) return;
      const int at = row * args.head_dim + column;
      const uint4 new_key = *reinterpret_cast<const uint4*>(key);
      const uint4 new_value = *reinterpret_cast<const uint4*>(value);
      *reinterpret_cast<uint4*>(keys + at) = new_key;
      *reinterpret_cast<uint4*>(values + at) = new_value;
    });
  }

 private:
  /// Loads an A operand of 16 keys and 16 columns, or of 16 columns and 16 values. A lane's row is
  /// a constant plus a multiple of eight, so the swizzle of its columns (tile_place) is a constant,
  /// too.
  __device__ Fragment load_keys(int n, int k) const {
    const int row = lane % 16;
    const int swap = (lane % 8 * kVectorSize) ^ (lane / 16 * 8);
    return load_fragment(keys + row * 64 + ((k % 64) ^ swap) + k / 64 * (kKeys * 64) + n * 64);
  }
  __device__ Fragment load_values(int k, int n) const {
    const int row = lane % 8 + lane / 16 * 8;
    const int swap = (lane % 8 * kVectorSize) ^ (lane / 8 % 2 * 8);
    return load_fragment_transposed(values + row * 64 + ((n % 64) ^ swap) + n / 64 * (kKeys * 64) +
                                    k * 64);
  }

  /// Calls body(to, from, row) for this lane's vectors of a whole tile: their addresses in the tile
  /// `to`, and in rows of kDim elements at `from`. The swizzle repeats after eight rows, so
  /// addresses differ by constants, which take no instruction.
  template <class Element, class Body>
  __device__ void for_whole_tile(T* to, const Element* from, Body body) const {
    const int column = lane % kAcross * kVectorSize;
#pragma unroll
    for (int first = 0; first < 8; first += kRowsAtOnce) {
      const int row = lane / kAcross + first;
      T* const place = to + tile_place<kKeys>(row, column);
      const Element* const at = from + (row * kDim + column);
#pragma unroll
      for (int i = 0; i < kKeys; i += 8) body(place + i * 64, at + i * kDim, row + i);
    }
  }

  template <class Base>
  __device__ Base* page_rows(const DecodeWork& work, int page, Base* pages) const {
    return pages + page_row(work, page) * params.args.head_dim;
  }

  __device__ void copy_by_tma(const DecodeWork& work, int page, bool of_keys) const {
    uint64_t* const here = of_keys ? &found.keys_here[warp] : &found.values_here[warp];
    sm90::TxBarrier::arrive_and_expect_tx(here, Traits::kTile * 2);
    const CUtensorMap* map = of_keys ? &params.key_map : &params.value_map;
    constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
    const int row = static_cast<int>(page_row(work, page));
    T* const to = of_keys ? keys : values;
#pragma unroll
    for (int box = 0; box < kDim / 64; ++box) {
      cute::SM90_TMA_LOAD_2D::copy(map, here, kHint, to + box * kKeys * 64, box * 64, row);
    }
  }

  __device__ void copy_by_lanes(const DecodeWork& work, int page, bool of_keys) const {
    const AttentionArgs& args = params.args;
    const T* const from = page_rows(
        work, page, static_cast<const T*>(of_keys ? args.pages.keys.data : args.pages.values.data));
    T* const to = of_keys ? keys : values;
    const int old = work.slab.position - first_key(work);
    if (args.head_dim == kDim) {
      if (old >= kKeys) {  // nearly every tile
        for_whole_tile(to, from, [](T* to, const T* from, int) { copy_vector_async(to, from); });
        return;
      }
      const int end = of_keys ? kKeys : work.slab.kv_length - first_key(work);
      for_whole_tile(to, from, [&](T* to, const T* from, int row) {
        if (row < old || row >= end) copy_vector_async(to, from, row < old);
      });
      return;
    }
    const int column = lane % kAcross * kVectorSize;
    const bool inside = column < args.head_dim;
#pragma unroll 1
    for (int row = lane / kAcross; row < min(old, kKeys); row += kRowsAtOnce) {
      copy_vector_async(to + tile_place<kKeys>(row, column),
                        from + (inside ? row * args.head_dim + column : 0), inside);
    }
    if (!of_keys) clear_values(work);
  }

  /// Clears values past the sequence's end, where probabilities are zero but 0 x NaN would be NaN;
  /// scores of keys there are masked.
  __device__ void clear_values(const DecodeWork& work) const {
    const int column = lane % kAcross * kVectorSize;
#pragma unroll 1
    for (int row = max(0, work.slab.kv_length - first_key(work)) + lane / kAcross; row < kKeys;
         row += kRowsAtOnce) {
      *reinterpret_cast<uint4*>(values + tile_place<kKeys>(row, column)) = {};
    }
  }

  /// Calls body(row of this warp's tile, column, address of the token's key, of its value) for the
  /// tokens of this step, for eight elements at a time; columns may lie past the head's end.
  template <class Body>
  __device__ void for_new(const DecodeWork& work, int page, Body body) const {
    const AttentionArgs& args = params.args;
    const int first = first_key(work);
    const int begin = max(0, work.slab.position - first);
    const int end = min(kKeys, work.slab.kv_length - first);
    const int column = lane % kAcross * kVectorSize;
#pragma unroll 1
    for (int row = begin + lane / kAcross; row < end; row += kRowsAtOnce) {
      const int64_t token = work.slab.q_begin + first + row - work.slab.position;
      const auto at = [&](const TensorView& fresh, const TensorView& pages) {
        const T* const rows = static_cast<const T*>(fresh.data);
        if (rows == nullptr) {
          return page_rows(work, page, static_cast<const T*>(pages.data)) + row * args.head_dim;
        }
        return rows + token * fresh.row_stride + work.slab.kv_head * args.head_dim;
      };
      body(row, column, at(args.k, args.pages.keys) + column,
           at(args.v, args.pages.values) + column);
    }
  }

  __device__ void copy_both_new(const DecodeWork& work, int page) const {
    for_new(work, page, [&](int row, int column, const T* key, const T* value) {
      const bool inside = column < params.args.head_dim;
      const int at = tile_place<kKeys>(row, column);
      const T* const any = static_cast<const T*>(params.args.pages.keys.data);
      copy_vector_async(keys + at, inside ? key : any, inside);
      copy_vector_async(values + at, inside ? value : any, inside);
    });
  }

  /// Waits for a tile that TMA copies from its page, and writes the tokens of this step over it.
  __device__ void put_new(const DecodeWork& work, int page) const {
    await_values(work);
    if (params.args.k.data != nullptr) {
      copy_both_new(work, page);
      cute::cp_async_fence();
    }
    clear_values(work);
    cute::cp_async_wait<0>();
    cutlass::arch::fence_view_async_shared();  // TMA writes the next tile to the same place
    __syncwarp();
  }
};

}  // namespace packhorse::cuda
