// A consumer warpgroup of attention over pages on Hopper (attention/paged/sm90_kernel.cuh). A
// warpgroup owns 64 rows of a slab, goes through their tiles of keys in ascending order, and stores
// the rows.
//
// A thread holds the same elements of its warp's 16 rows in the accumulators of wgmma as in those
// of mma.sync, so the softmax of a tile is that of the other kernels, and sums are added in the
// same order.
#pragma once

#include "cuda/attention/paged/sm90_traits.cuh"

namespace packhorse::cuda {

/// Merges the results of a tile or chunk for a thread's two rows, as merge_chunk does. `above` and
/// `below` are the rows' factors.
template <int kBlocks>
__device__ void merge_rows(float (&merged)[kBlocks][4], const float (&part)[kBlocks][4],
                           float2 above, float2 below) {
  // Common case: all rows of the warp see keys of the part, so that nothing has to be tested.
  if (__all_sync(kFullWarp, above.y != 0 && below.y != 0)) {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 factors = e < 2 ? above : below;
        merged[n][e] = __fmaf_rn(part[n][e], factors.y, __fmul_rn(merged[n][e], factors.x));
      }
    }
    return;
  }
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      merged[n][e] = merge_chunk(merged[n][e], part[n][e], e < 2 ? above : below);
    }
  }
}

template <class Traits>
struct PagesSm90Consumer {
  using T = typename Traits::T;
  using Products = sm90::Products<T>;
  using Accumulator = typename Products::Accumulator;
  static constexpr int kDim = Traits::kDim;
  static constexpr int kKeys = Traits::kKeys;
  static constexpr int kBoxes = Traits::kBoxes;
  static constexpr int kBox = kKeys * 64;  // elements of 64 columns of a tile

  const PagesSm90Params& params;
  typename Traits::Shared& smem;
  const int group = sm90::uniform(static_cast<int>(threadIdx.x) / 128);
  /// The first of this warp's 16 rows in the slab.
  const int warp_row = sm90::uniform(static_cast<int>(threadIdx.x) / 32) * 16;
  const bool leader = threadIdx.x % 32 == 0;
  sm90::Ring<Traits::kQueryStages> query;
  sm90::Ring<Traits::kStages> stage;  // stages of keys, and of values
  PagedSlab slab;

  /// Accumulators of the rows: for the current chunk, and for all chunks before it.
  Accumulator chunk[kBoxes], merged[kBoxes];
  ChunkMerge chunk_above, chunk_below, merged_above, merged_below;

  __device__ PagesSm90Consumer(const PagesSm90Params& params, typename Traits::Shared& smem)
      : params(params), smem(smem) {}

  /// Tells the producer that this warp is done with a stage of keys or values.
  __device__ void release(uint64_t* empty) const {
    if (leader) sm90::Barrier::arrive(empty);
  }

  /// Waits for and releases tiles that no row of this warpgroup sees.
  __device__ void skip(int tiles) {
#pragma unroll 1
    for (; tiles > 0; --tiles) {
      sm90::Barrier::wait(&smem.keys_full[stage.index], stage.phase);
      release(&smem.keys_empty[stage.index]);
      sm90::Barrier::wait(&smem.values_full[stage.index], stage.phase);
      release(&smem.values_empty[stage.index]);
      stage.advance();
    }
  }

  __device__ void multiply_keys(Accumulator& scores) const {
    const typename Products::InShared mma;
    const auto slice = mma.get_slice(threadIdx.x % 128);
    using Rows = typename Products::Rows;
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      const T* const a = smem.queries[query.index] + (box * Traits::kRows + group * 64) * 64;
      const T* const b = smem.keys[stage.index] + box * kBox;
      Products::issue(mma, slice.partition_fragment_A(Products::template tile<Rows>(a)),
                      slice.partition_fragment_B(Products::template tile<Rows>(b)), scores,
                      box > 0);
    }
    Products::template wait<0>(scores);
  }

  /// Issues out = probabilities times 64 columns of the tile's values.
  __device__ void multiply_values(const Fragment (&p)[kKeys / 16], int box,
                                  Accumulator& out) const {
    using Turned = typename Products::Turned;
    const T* const b = smem.values[stage.index] + box * kBox;
    Products::issue(typename Products::OfTurned{}, p, Products::template tile<Turned>(b), out,
                    false);
  }

  /// Computes one tile. The first tile of a chunk begins the chunk's sums; later ones are merged
  /// with them.
  template <bool kFirst>
  __device__ void attend(int tile) {
    Accumulator scores;
    sm90::Barrier::wait(&smem.keys_full[stage.index], stage.phase);
    multiply_keys(scores);
    const int row = slab.row + warp_row;
    if constexpr (Traits::kRare) {
      finish_paged_scores(scores, params, slab, row, tile * kKeys);
    } else {
      finish_plain_scores(scores, params, slab, row, tile * kKeys);
    }
    float2 maxima, sums;
    tile_softmax(scores, maxima, sums);
    Fragment p[kKeys / 16];
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) p[k] = pack_a<T>(scores[2 * k], scores[2 * k + 1]);
    // The condition always holds. It keeps the wait for the values after the softmax, where the
    // compiler would otherwise move it ahead.
    if (leader && !(sums.x < 0)) sm90::Barrier::arrive(&smem.keys_empty[stage.index]);
    sm90::Barrier::wait(&smem.values_full[stage.index], stage.phase);
    if constexpr (kFirst) {
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) multiply_values(p, box, chunk[box]);
      // The first tile of a chunk: its state is what ChunkMerge makes of an empty chunk and this
      // tile.
      chunk_above = {maxima.x, sums.x};
      chunk_below = {maxima.y, sums.y};
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) Products::template wait<0>(chunk[box]);
      clear_unseen(sums);
    } else {
      float2 above, below;
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        Accumulator part;
        multiply_values(p, box, part);
        if (box == 0) {
          chunk_above.add(maxima.x, sums.x, above);
          chunk_below.add(maxima.y, sums.y, below);
        }
        Products::template wait<0>(part);
        merge_rows(chunk[box], part, above, below);
      }
    }
    release(&smem.values_empty[stage.index]);
    stage.advance();
  }

  /// Clears the results of rows that see no key of the tile: 0 x NaN would be NaN.
  __device__ void clear_unseen(float2 sums) {
    if (__all_sync(kFullWarp, sums.x != 0 && sums.y != 0)) return;
#pragma unroll
    for (Accumulator& box : chunk) {
#pragma unroll
      for (float (&block)[4] : box) {
        if (sums.x == 0) block[0] = block[1] = 0;
        if (sums.y == 0) block[2] = block[3] = 0;
      }
    }
  }

  __device__ void end_chunk() {
    float2 above, below;
    merged_above.add(chunk_above.maximum, chunk_above.sum, above);
    merged_below.add(chunk_below.maximum, chunk_below.sum, below);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) merge_rows(merged[box], chunk[box], above, below);
  }

  /// Writes the rows before `row_end`, staged where this warp's queries were.
  __device__ void store(int row_end) const {
    const AttentionArgs& args = params.args;
    const AccumulatorPlace place;
    using Pair = typename Element<T>::Pair;
    sm90::named_sync(1 + group, 128);  // from here on no warp reads the queries
    T* const staging = smem.queries[query.index];
    const float2 factors = {inverse_or_zero(merged_above.sum), inverse_or_zero(merged_below.sum)};
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const float (&found)[4] = merged[box][n];
        T* const at = staging + tile_place<Traits::kRows>(warp_row + place.row,
                                                          box * 64 + n * 8 + place.column);
        *reinterpret_cast<Pair*>(at) = Element<T>::pair(found[0] * factors.x, found[1] * factors.x);
        *reinterpret_cast<Pair*>(at + 8 * 64) =
            Element<T>::pair(found[2] * factors.y, found[3] * factors.y);
      }
    }
    __syncwarp();
    constexpr int kAcross = kDim / kVectorSize;
    T* const out = static_cast<T*>(args.out.data);
    for (int at = static_cast<int>(threadIdx.x) % 32; at < 16 * kAcross; at += 32) {
      const int row = warp_row + at / kAcross;
      const int column = at % kAcross * kVectorSize;
      const int r = slab.row + row;
      if (r >= row_end || column >= args.head_dim) continue;
      const int token = params.token_of(r);
      const int head = slab.kv_head * params.group + r - token * params.group;
      *reinterpret_cast<uint4*>(out + (slab.q_begin + token) * args.out.row_stride +
                                head * args.head_dim + column) =
          *reinterpret_cast<const uint4*>(staging + tile_place<Traits::kRows>(row, column));
    }
  }

  /// Computes slabs until the producer sends one without rows.
  __device__ void run() {
    for (;; query.advance()) {
      sm90::Barrier::wait(&smem.queries_full[query.index], query.phase);
      const PagedSlab& now = smem.slabs[query.index];
      slab = {sm90::uniform(now.sequence), sm90::uniform(now.q_begin),
              sm90::uniform(now.rows),     sm90::uniform(now.row),
              sm90::uniform(now.position), sm90::uniform(now.kv_length),
              sm90::uniform(now.kv_head)};
      if (slab.rows == 0) break;
      const int row_end = SlabItems{params}.row_end(slab);
      const SlabTiles all(params, slab, slab.row, row_end - 1, kKeys);
      const int first = slab.row + group * 64;
      if (first >= row_end) {
        skip(all.end - all.begin);
      } else {
        const SlabTiles mine(params, slab, first, min(first + 64, row_end) - 1, kKeys);
        skip(mine.begin - all.begin);
        merged_above = merged_below = {};
#pragma unroll
        for (Accumulator& box : merged) {
#pragma unroll
          for (float (&block)[4] : box) block[0] = block[1] = block[2] = block[3] = 0;
        }
#pragma unroll 1
        for (int tile = mine.begin; tile < mine.end;) {
          const int chunk_end = min(mine.end, (tile / kChunkTiles<kDim> + 1) * kChunkTiles<kDim>);
          attend<true>(tile);
#pragma unroll 1
          while (++tile < chunk_end) attend<false>(tile);
          end_chunk();
        }
        skip(all.end - mine.end);
        store(row_end);
      }
      // TMA writes the next queries to where the rows were staged.
      cutlass::arch::fence_view_async_shared();
      sm90::Barrier::arrive(&smem.queries_empty[query.index]);
    }
  }
};

}  // namespace packhorse::cuda
