// Attention over pages for few queries: the tokens that a step of generation adds to sequences. Its
// time is that of reading the cached keys and values once.
//
// A block goes through chunks of keys, for up to 8 or 16 rows, and each of its warps computes one
// tile of the chunk: the warp copies the tile's keys and values to shared memory, and computes the
// tile's maxima, sums and products as paged_attention_kernel does, without waiting for other warps.
// The next tile is copied while a warp computes, the first one while the kernel before still runs.
// On Hopper one lane starts the copy of a tile of large heads by TMA (the Tensor Memory
// Accelerator); elsewhere, and for small heads, whose tiles would arrive later by TMA, all lanes
// copy by cp.async.
//
// The tokens of this step are read from where they were computed, not from their page, and the
// block that has the slab's first rows also writes them to their page, so that no kernel has to do
// that first.
//
// Where several blocks have chunks of the same rows, each stores its results in the workspace, and
// the last block to finish merges all chunks in ascending order. Where that is much work, the last
// few blocks share it.
//
// Where a step has many short sequences, waiting for one another would cost the warps of a block
// more than their few keys do. Each then goes through the tiles of slabs of its own, and merges
// them in registers by the same operations in the same order.
//
// A step launches this kernel once for every layer, and each time its instructions have to be
// fetched from memory again, so rare code is kept out of the common path.
#pragma once

#include <type_traits>

#include "core/math.h"
#include "cuda/attention/paged/decode_merge.cuh"
#include "cuda/attention/paged/decode_share.cuh"
#include "cuda/attention/paged/decode_shared_merge.cuh"
#include "cuda/attention/paged/decode_tiles.cuh"
#include "cuda/attention/paged/warp_schedule.cuh"

namespace packhorse::cuda {

/// Computation of one block. Tiles_: the class that copies tiles to shared memory and multiplies by
/// them, DecodeTiles or Float8DecodeTiles.
template <class Tiles_>
struct DecodeAttention : Tiles_ {
  using Tiles = Tiles_;
  using T = typename Tiles::T;
  using Traits = typename Tiles::Traits;
  using Tiles::first_key;
  using Tiles::found;
  using Tiles::has_keys;
  using Tiles::keys;
  using Tiles::lane;
  using Tiles::params;
  using Tiles::values;
  using Tiles::warp;
  static constexpr int kDim = Traits::kDim;
  static constexpr int kRows = Traits::kRows;
  static constexpr int kThreads = Traits::kThreads;
  static constexpr int kKeys = Traits::kKeys;

  /// Neighbouring columns of a row that a thread merges at once.
  static constexpr int kColumns = kDim >= 128 ? 4 : 2;
  /// Warps may have slabs of their own; the results of larger heads would take too many registers.
  static constexpr bool kMayBeAlone = kDim <= 64;
  /// Parts of a row, for the merge by warps: a warp merges one part, kColumns columns in each lane.
  static constexpr int kParts = kDim / (32 * kColumns);

  /// Running merge of one part of a row over the chunks so far, where one block has all chunks of
  /// its rows.
  struct Kept {
    float sums[kColumns];
    ChunkMerge merge;
  };
  /// Running merges of all parts of rows that this thread merges. They are not a member of the
  /// class: the array is indexed at run time and so lies in local memory, where it would take all
  /// members with it.
  using AllKept = Kept[kRows * kParts / Traits::kWarps];

  using Tiles::Tiles;

  using Rows = DecodeRows<T, kRows>;
  __device__ Rows rows(const DecodeWork& work) const { return {params, work}; }

  /// Loads the operands of the queries; rows that do not exist are zeros.
  __device__ void load_queries(typename Tiles::Queries& queries, const DecodeWork& work) const {
    const AccumulatorPlace place;
    const int head_dim = params.args.head_dim;
    const T* const q = static_cast<const T*>(params.args.q.data);
    const Rows slab = rows(work);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = place.row + h * 8;
      const bool exists = h * 8 < kRows && row < slab.count();
      const T* at = exists ? slab.pointer(q, params.args.q.row_stride, row) : q;
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int column = Tiles::query_column(2 * k + half);
          queries.x[k].x[2 * half + h] =
              exists && column < head_dim ? __ldcg(reinterpret_cast<const unsigned*>(at + column))
                                          : 0;
        }
      }
    }
    Tiles::convert_queries(queries);
  }

  static constexpr int kSets = Tiles::kSets;
  using Scores = typename Tiles::Scores;
  using Output = typename Tiles::Output;
  static constexpr int kOutputBlocks = std::extent_v<Output, 1>;

  /// Finishes a set's scores with a cap or a term; not inlined, to keep its instructions out of the
  /// common path.
  template <int kBlocks>
  __device__ void finish_rare(const DecodeWork& work, int row, float (&scores)[kBlocks][4]) const {
    SetScores<kBlocks> moved;
    memcpy(moved.of, scores, sizeof(moved.of));
    finish_in_memory(params, work.slab, row, first_key(work), moved);
    memcpy(scores, moved.of, sizeof(moved.of));
  }
  template <int kBlocks>
  struct SetScores {
    float of[kBlocks][4];
  };
  template <int kBlocks>
  __device__ static __noinline__ void finish_in_memory(const PagedKernelParams& params,
                                                       const PagedSlab& slab, int row, int first,
                                                       SetScores<kBlocks>& scores) {
    finish_paged_scores<KeysByRows>(scores.of, params, slab, row, first);
  }

  /// Computes this warp's scores, masked where some row does not see some key.
  __device__ void score(const DecodeWork& work, const typename Tiles::Queries& queries,
                        Scores& scores) const {
    Tiles::multiply_keys(queries, scores);
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      const int row = work.slab.row + set * 8;
      finish_scores<KeysByRows>(scores[set], params, work.slab, row, first_key(work),
                                [&] { finish_rare(work, row, scores[set]); });
    }
  }

  /// Returns the index of a sum in Found::sums, swizzled against bank conflicts.
  __device__ static int sum_place(int row, int column) {
    return row * kDim + (column ^ (row % 4 * 8));
  }

  /// Calls body(set, half, row) for this thread's rows that exist.
  template <class Body>
  __device__ void for_each_row(const DecodeWork& work, Body body) const {
    const typename Tiles::OutputPlace place;
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = set * 8 + place.row + h * place.kRowStep;
        if (row < rows(work).count()) body(set, h, row);
      }
    }
  }

  /// Stores a tile's results where the block merges them. A tile without keys stores only its empty
  /// states (maximum -infinity, sum 0).
  __device__ void leave_tile(const DecodeWork& work, const Output& output,
                             const float2 (&maxima)[kSets], const float2 (&sums)[kSets]) const {
    const typename Tiles::OutputPlace place;
    for_each_row(work, [&](int set, int h, int row) {
      if (lane < 4) {
        found.state[warp][row] =
            h == 0 ? float2{maxima[set].x, sums[set].x} : float2{maxima[set].y, sums[set].y};
      }
      if (!has_keys(work)) return;
      float* const to = found.sums[warp];
#pragma unroll
      for (int n = 0; n < kOutputBlocks; ++n) {
        const int column = place.column + n * place.kBlockStep;
        if constexpr (place.kColumnStep == 1) {
          *reinterpret_cast<float2*>(to + sum_place(row, column)) = {output[set][n][2 * h],
                                                                     output[set][n][2 * h + 1]};
        } else {
          to[sum_place(row, column)] = output[set][n][2 * h];
          to[sum_place(row, column + place.kColumnStep)] = output[set][n][2 * h + 1];
        }
      }
    });
  }

  /// Calls body(row, column, index) for every group of kColumns columns of all rows, divided among
  /// the threads; `column` is the first of the group, `index` the number of the part among this
  /// thread's.
  template <class Body>
  __device__ void for_each_part(const DecodeWork& work, Body body) const {
    int index = 0;
#pragma unroll 1
    for (int part = warp; part < rows(work).count() * kParts; part += Traits::kWarps) {
      const int column = (part % kParts * 32 + lane) * kColumns;
      if (column < params.args.head_dim) body(part / kParts, column, index);
      ++index;
    }
  }

  /// Results of a slab that a warp computes by itself: of the current chunk, and of those before.
  struct OwnRows {
    MergedRows<kOutputBlocks> chunk[kSets], merged[kSets];
  };

  /// Merges a tile into those before it, and after the slab's `last` one stores the results.
  __device__ void merge_own_tile(const DecodeWork& work, const Output& output,
                                 const float2 (&maxima)[kSets], const float2 (&sums)[kSets],
                                 bool last, OwnRows& own) const {
#pragma unroll
    for (int set = 0; set < kSets; ++set) own.chunk[set].add(output[set], maxima[set], sums[set]);
    if (!last && work.tile + 1 < Traits::kWarps) return;
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      own.merged[set].add(own.chunk[set]);
      own.chunk[set] = {};
    }
    if (!last) return;
    const typename Tiles::OutputPlace place;
    const Rows slab = rows(work);
    for_each_row(work, [&](int set, int h, int row) {
      const MergedRows<kOutputBlocks>& merged = own.merged[set];
      const float sum = h == 0 ? merged.above.sum : merged.below.sum;
#pragma unroll
      for (int n = 0; n < kOutputBlocks; ++n) {
        const int column = place.column + n * place.kBlockStep;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = column + i * place.kColumnStep;
          if (at < params.args.head_dim) slab.store(row, at, merged.output[n][2 * h + i], sum);
        }
      }
    });
#pragma unroll
    for (int set = 0; set < kSets; ++set) own.merged[set] = {};
  }

  /// Merges the tiles of a chunk. The result goes to the workspace. If no other block has chunks of
  /// these rows, it is merged with the chunks before instead, and stored after the last chunk.
  __device__ void merge_tiles(const DecodeWork& work, bool last, AllKept& kept) const {
    for_each_part(work, [&](int row, int column, int index) {
      ChunkMerge merge;
      float sums[kColumns] = {};
#pragma unroll
      for (int tile = 0; tile < Traits::kWarps; ++tile) {
        const float2 state = found.state[tile][row];
        float one[kColumns];
        copy_columns(one, found.sums[tile] + sum_place(row, column));
        float2 factors;
        merge.add(state.x, state.y, factors);
#pragma unroll
        for (int i = 0; i < kColumns; ++i) sums[i] = merge_chunk(sums[i], one[i], factors);
      }
      if (work.blocks > 1) {
        const Rows slab = rows(work);
        const int64_t entry =
            slab.entry(row) + (work.chunk - work.chunks.first) * slab.entry_step();
        if (column == 0) params.state[entry] = {merge.maximum, merge.sum};
        copy_columns(params.sums + entry * params.args.head_dim + column, sums);
        return;
      }
      Kept all{{}, {}};
      if (work.chunk > work.chunks.first) all = kept[index];
      float2 factors;
      all.merge.add(merge.maximum, merge.sum, factors);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        all.sums[i] = merge_chunk(all.sums[i], sums[i], factors);
      }
      if (!last) {
        kept[index] = all;
        return;
      }
#pragma unroll
      for (int i = 0; i < kColumns; i += 2) {
        rows(work).store(row, column + i, {all.sums[i], all.sums[i + 1]}, all.merge.sum);
      }
    });
  }
  __device__ static void copy_columns(float* to, const float* from) {
    using Vector = std::conditional_t<kColumns == 4, float4, float2>;
    *reinterpret_cast<Vector*>(to) = *reinterpret_cast<const Vector*>(from);
  }

  /// Returns whether several blocks share the merge of these rows' chunks, where each has computed
  /// some.
  __device__ bool shares_merge(const DecodeWork& work) const {
    return work.chunks.count() * rows(work).count() >= kSharedWork * Traits::kWarps;
  }
  /// Returns whether a warp merges a whole row, and not 32 columns as SharedMerge does. Whole rows
  /// take fewer instructions, but more time where a block has its multiprocessor to itself.
  __device__ bool merges_rows(const DecodeWork& work) const {
    return work.chunks.count() <= kDecodeChunks && static_cast<int>(gridDim.x) > params.sm_count;
  }
  /// Number of blocks that share the merge, at most `blocks`.
  __device__ int mergers(const DecodeWork& work, int blocks) const {
    const int count = rows(work).count();
    const int shares = merges_rows(work) ? ceil_div(count, Traits::kWarps) : count * (kDim / 32);
    return min(min(kMostMergers, blocks), shares);
  }
  __device__ SlabCounter counter(const DecodeWork& work) const {
    return SlabCounter(params.counters + work.slot * params.args.num_kv_heads + work.slab.kv_head);
  }

  /// Returns whether this block is the last of those that have chunks of these rows, and so merges
  /// all chunks.
  __device__ bool is_last(const DecodeWork& work, bool has_more) const {
    __syncthreads();
    if (threadIdx.x == 0) {
      const auto others = [&] { return shares_merge(work) ? mergers(work, work.blocks - 1) : 0; };
      found.shares = counter(work).arrive(work.blocks, has_more, others) ? 1 : 0;
    }
    __syncthreads();
    return found.shares != 0;
  }

  /// Merges this block's shares after its last unit, `work`. Up to kMostMergers of the blocks with
  /// chunks of these rows share the merge; with `one_goes_on` one of them goes on to other rows
  /// instead.
  __device__ void share_merge(const DecodeWork& work, bool one_goes_on) const {
    const int enders = work.blocks - (one_goes_on ? 1 : 0);
    const int count = mergers(work, enders);
    SlabCounter slab = counter(work);
    __syncthreads();
    if (threadIdx.x == 0) found.shares = slab.arrive_to_share(work.blocks, enders, count);
    __syncthreads();
    const SharedMerge<Rows, Traits> merge{params, work, reinterpret_cast<float*>(keys),
                                          reinterpret_cast<float4*>(found.sums[warp])};
    const unsigned shares = found.shares;
    if (shares == 0) return;
#pragma unroll 1
    for (unsigned left = shares; left != 0; left &= left - 1) {
      const int share = __ffs(static_cast<int>(left)) - 1;
      if (merges_rows(work)) {
        merge_chunks<Rows, kDim, Traits::kWarps>(params, work, share, count);
      } else {
        merge.merge(share, count);
      }
    }
    if (threadIdx.x == 0) slab.leave(count);
  }
};

/// Computes the units of a block, or, with a WarpSchedule, the tiles of each warp's own slabs.
template <class Attention, class Schedule>
__device__ __forceinline__ void compute_units(Attention& attention, Schedule& schedule) {
  constexpr int kDim = Attention::kDim;
  constexpr int kSets = Attention::kSets;
  const DecodeKernelParams& params = attention.params;
  DecodeWork work;  // the current unit
  typename Attention::AllKept kept;
  typename Attention::OwnRows own;
  typename Attention::Tiles::Queries queries;
  int page = 0;
  bool more = true;
  bool shares = false;  // the merge of the last unit's slab is shared
  // TMA reads pages ahead of the wait below. Where this step's keys and values lie in their pages
  // already, kernels before have written them, so the wait comes first. Without a causal mask the
  // kernel before may have written any of the keys, and not only the last ones.
  const bool reads_ahead = !Attention::Traits::kTma && params.args.mask.causal;
  if (params.args.k.data == nullptr && !reads_ahead) wait_for_previous_kernel();
  // Each iteration computes a unit and copies the next one; the first iteration only copies.
  for (int unit = -1; more; ++unit) {
    const bool has_keys = unit >= 0 && attention.has_keys(work);
    typename Attention::Scores scores = {};
    if (has_keys) {
      attention.await_keys(work, page);
      attention.score(work, queries, scores);
    }
    const bool same = unit >= 0 && schedule.continues();
    more = schedule.next();
    const DecodeWork& next = schedule.work();
    const int next_page = more ? attention.page_of(next) : 0;
    __syncwarp();  // the keys have been read
    if (more) attention.copy_old(next, next_page, true);
    attention.end_group();
    float2 maxima[kSets], sums[kSets];
    typename Attention::Output output = {};
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      maxima[set] = {-INFINITY, -INFINITY};
      sums[set] = {0, 0};
    }
    if (has_keys) {
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
        tile_softmax<KeysByRows>(scores[set], maxima[set], sums[set]);
      }
      attention.await_values(work);
      attention.multiply_values(scores, output);
      attention.phase ^= 1;
      __syncwarp();  // the values have been read
    }
    if (more) attention.copy_old(next, next_page, false);
    if (unit < 0) {
      // Kernels before this one write, of all that it reads, only the queries and this step's
      // tokens, which are read from here on.
      wait_for_previous_kernel();
      let_next_kernel_start();
    }
    if (unit >= 0) attention.store_new(work, page);
    if (more) {
      if (!same) attention.load_queries(queries, next);
      attention.copy_new(next, next_page);
    }
    attention.end_group();
    if (unit >= 0) {
      if constexpr (Schedule::kAlone) {
        attention.merge_own_tile(work, output, maxima, sums, !same, own);
      } else {
        if (unit > 0) __syncthreads();  // results of the unit before have been merged
        attention.leave_tile(work, output, maxima, sums);
        __syncthreads();
        attention.merge_tiles(work, !same, kept);
        if (!same && work.blocks > 1) {
          shares = !more && attention.shares_merge(work);
          if (!shares && attention.is_last(work, more)) {
            merge_chunks<typename Attention::Rows, kDim, Attention::Traits::kWarps>(params, work);
          }
        }
      }
    }
    work = next;
    page = next_page;
  }
  if constexpr (!Schedule::kAlone) {
    if (shares) attention.share_merge(work, schedule.slab_goes_on());
  }
}

template <class Tiles>
__global__ void __launch_bounds__(Tiles::Traits::kThreads, Tiles::Traits::kBlocks)
    paged_decode_kernel(const __grid_constant__ DecodeKernelParams params) {
  using Attention = DecodeAttention<Tiles>;
  constexpr int kRows = Attention::kRows;
  constexpr int kWarps = Attention::Traits::kWarps;
  constexpr int kKeys = kChunkKeys<Attention::kDim>;
  extern __shared__ __align__(1024) unsigned char decode_shared[];  // aligned for TMA's swizzle
  Attention attention(params, decode_shared);
  DecodeSchedule<kRows, kKeys, kWarps> schedule(params);
  if constexpr (Attention::kMayBeAlone) {
    if (const int tiles = schedule.tiles_of_warps(); tiles > 0) {
      WarpSchedule<kRows, kKeys, kWarps> own(schedule.sequences(), tiles);
      return compute_units(attention, own);
    }
  }
  compute_units(attention, schedule);
}

}  // namespace packhorse::cuda
