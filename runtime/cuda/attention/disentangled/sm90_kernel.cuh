// Disentangled attention for Hopper, for heads of up to 64 columns: the algorithm of
// attention/disentangled/kernel.cuh with wgmma, and with fewer products.
//
// A block has 128 queries, 64 to a warpgroup, and goes through tiles of 64 keys. Distances i - j
// are handled in chunks of 64. Each key tile needs two chunks per warpgroup, and the next key tile
// needs the lower of them again. Queries times position keys are computed for one chunk per key
// tile: part of the results belongs to this key tile, the rest to the next one, and both are stored
// in shared memory at (query, key). Keys times position queries are computed for both chunks: of
// the two results that a thread has at the same place of the two chunks, exactly one belongs to
// this key tile. A table that is missing reads as zeros.
#pragma once

#include "cuda/attention/disentangled/bands.cuh"
#include "cuda/attention/disentangled/sm90_products.cuh"

namespace packhorse::cuda {

namespace sm90 {

/// A thread's part of a 64 x 64 product, rounded to 16 bits: pair[n][h] lies in row place.row + 8 h
/// and in block n of 8 columns.
template <class T>
struct Packed {
  using Pair = typename Element<T>::Pair;
  uint32_t pair[8][2];

  __device__ void set(const float (&product)[8][4]) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const Pair both = Element<T>::pair(product[n][2 * h], product[n][2 * h + 1]);
        pair[n][h] = *reinterpret_cast<const uint32_t*>(&both);
      }
    }
  }

  /// Calls visit(n, h, x, pair) for every result; x says which half of `pair` it is.
  template <class Visit>
  __device__ void for_each(Visit visit) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        visit(n, h, 0, pair[n][h]);
        visit(n, h, 1, pair[n][h]);
      }
    }
  }
};

/// Returns the lower (x = 0) or upper (x = 1) element of a pair.
template <class T>
__device__ T element_of(uint32_t pair, int x) {
  const auto both = *reinterpret_cast<const typename Element<T>::Pair*>(&pair);
  return x == 0 ? both.x : both.y;
}

}  // namespace sm90

template <class T>
struct DisentangledSm90 {
  static constexpr int kThreads = 256;
  static constexpr int kRows = 128;
  static constexpr int kKeys = sm90::kSide;
  static constexpr int kTile = sm90::kSide * sm90::kSide;

  struct Shared {
    alignas(1024) T keys[kTile];
    T values[kTile];
    // Rings of chunks: chunk c of key tile t lies in buffer c - t, modulo the number of buffers.
    T position_keys[2][kTile];
    T position_queries[3][kTile];
    // Staged results, a buffer for each warpgroup. Columns 0 to 63 hold those of even key tiles,
    // columns 64 to 127 those of odd ones.
    T staged_queries[2][64 * kPitch<2 * kKeys>];
    T staged_keys[2][64 * kPitch<kKeys>];  // queries and results are staged here, too
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);
};

template <class T>
__global__ void __launch_bounds__(DisentangledSm90<T>::kThreads, 2)
    disentangled_attention_sm90_kernel(const __grid_constant__ DisentangledParams given) {
  using Traits = DisentangledSm90<T>;
  using Products = sm90::Products<T>;
  using Layout = sm90::SwizzledRows;
  constexpr int kKeys = Traits::kKeys;
  constexpr int kThreads = Traits::kThreads;
  constexpr int kPitchQueries = kPitch<2 * kKeys>;
  constexpr int kPitchKeys = kPitch<kKeys>;
  const PortableParams& params = given.portable;
  extern __shared__ __align__(1024) unsigned char raw[];
  auto& shared = *reinterpret_cast<typename Traits::Shared*>(raw);

  // The longest sequences come first, so that no long tile starts when the others are done. The
  // list lies in shared memory that copies overwrite later.
  const AttentionArgs& args = params.args;
  const VarlenBatch batch{args.queries.cu_seqlens, args.keys.cu_seqlens,
                          args.queries.counts,     static_cast<int32_t>(args.queries.num_sequences),
                          args.num_heads,          1};
  auto& tiles = *reinterpret_cast<TileList*>(&shared);
  static_assert(sizeof(TileList) <= sizeof(shared));
  tiles.build(batch, Traits::kRows, kThreads);
  const auto index = static_cast<int32_t>(blockIdx.x);
  const bool found = index < tiles.num_tiles();
  QueryTile slab{};
  if (found) slab = tiles.find(index, batch, Traits::kRows, args.mask.causal);
  __syncthreads();
  const Sequence& sequence = slab.sequence;
  const KeyTiles range(slab, params.window, Traits::kRows, kKeys);
  const int head_dim = args.head_dim;
  const int group = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / 128, 0);
  const int warp_row = static_cast<int>(threadIdx.x) % 128 / 32 * 16;
  const int block_row = 64 * group + warp_row;
  const int count = min(Traits::kRows, sequence.q_length - slab.row);
  const bool has_rows = 64 * group < count;
  const int first_position = sequence.k_length - sequence.q_length + slab.row;
  const Bands<T> bands(given.term, slab, head_dim, Traits::kRows);
  const auto fetch_chunk = [&](T* keys, T* queries, int tile, int chunk) {
    bands.template fetch<64, kThreads, Layout>(
        keys, queries, first_position - tile * kKeys - (kKeys - 1) + 64 * chunk);
  };
  const auto fetch_rows = [&](T* to, const T* from, int64_t stride, int rows) {
    copy_rows_async<kKeys, Layout, kThreads>(to, from, stride, rows, head_dim);
  };
  const auto fetch_keys = [&](int tile) {
    fetch_rows(shared.keys, params.k<T>(slab, tile * kKeys), args.k.row_stride,
               sequence.k_length - tile * kKeys);
  };
  // Waits until the copies of all threads have arrived and are visible to wgmma.
  const auto wait_for_copies = [] {
    cute::cp_async_wait<0>();
    cutlass::arch::fence_view_async_shared();
    __syncthreads();
  };

  const AccumulatorPlace place;
  T* const staged_queries = shared.staged_queries[group];
  T* const staged_keys = shared.staged_keys[group];
  // Stores the results of queries times a chunk of position keys: some belong to the block's
  // `tile`-th key tile, the others to the next one.
  const auto stage_query_terms = [&](const sm90::Packed<T>& terms, int tile) {
    const int row = warp_row + place.row;
    T* const base = staged_queries + row * (kPitchQueries + 1) + 63 - place.column;
    T* const here = base + tile % 2 * kKeys;
    T* const next = base + (1 - tile % 2) * kKeys - kKeys;
    const int first_here = row - place.column;
    terms.for_each([&](int n, int h, int x, uint32_t pair) {
      T* const to = 8 * n + x - 8 * h >= first_here ? here : next;
      to[8 * h * (kPitchQueries + 1) - 8 * n - x] = sm90::element_of<T>(pair, x);
    });
  };
  // Stores those results of keys times a chunk of position queries that belong to this warpgroup's
  // queries; `upper` is true for the chunk of larger distances.
  const auto stage_key_terms = [&](const sm90::Packed<T>& terms, auto upper) {
    const int row = warp_row + place.row;  // the row of the product, which is the key
    const int first_lower = 63 - row - place.column;
    T* const base = staged_keys + (upper * kKeys - first_lower) * kPitchKeys + row;
    terms.for_each([&](int n, int h, int x, uint32_t pair) {
      if ((8 * n + 8 * h + x >= first_lower) == upper) return;
      base[(8 * n + 8 * h + x) * kPitchKeys + 8 * h] = sm90::element_of<T>(pair, x);
    });
  };

  // The tables are made of weights, so they are copied while the kernel before is still ending.
  if (range.count() > 0) {
    fetch_chunk(shared.position_keys[0], shared.position_queries[0], range.begin, 0);
    fetch_chunk(shared.position_keys[1], shared.position_queries[1], range.begin, 1);
    fetch_chunk(shared.values, shared.position_queries[2], range.begin, 2);
  }
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (!found) return;

  Fragment queries[4];
  if (range.count() > 0) {
    copy_tile_async<Traits::kRows, kKeys, kThreads>(shared.staged_keys[0], params.q<T>(slab),
                                                    args.q.row_stride, count, head_dim);
    fetch_keys(range.begin);
    cute::cp_async_fence();
    wait_for_copies();
#pragma unroll
    for (int k = 0; k < 4; ++k) queries[k] = load_a<kKeys>(staged_keys, warp_row, k * 16);
    if (has_rows) {
      float product[8][4];
      Products::multiply(queries, group == 0 ? shared.position_keys[1] : shared.values, product);
      Products::template wait<0>(product);
      sm90::Packed<T> terms;
      terms.set(product);
      stage_query_terms(terms, 1);
    }
  }

  float output[8][4] = {};
  float2 maximum = {-INFINITY, -INFINITY};
  float2 sum = {};
  for (int tile = range.begin, step = 0; tile < range.end; ++tile, ++step) {
    const int key = tile * kKeys;
    // Past this barrier keys and chunks are complete, and values and staged terms are no longer
    // read.
    wait_for_copies();
    fetch_rows(shared.values, params.v<T>(slab, key), args.v.row_stride, sequence.k_length - key);
    cute::cp_async_fence();
    float scores[8][4];
    if (has_rows) {
      // While a product is in flight, the packed results of the one before are stored: 128
      // registers hold no more. Packed results must be stored before the second product after
      // theirs is issued: where two sets were kept for longer, ptxas 13.0 took them for the same
      // values.
      const int lower = (group + 3 - step % 3) % 3;
      const int upper = lower == 2 ? 0 : lower + 1;
      sm90::Packed<T> terms;
      Products::multiply(shared.keys, shared.position_queries[lower], scores);
      Products::template wait<0>(scores);
      terms.set(scores);
      Products::multiply(shared.keys, shared.position_queries[upper], scores);
      stage_key_terms(terms, std::false_type{});
      Products::template wait<0>(scores);
      terms.set(scores);
      Products::multiply(queries, shared.position_keys[(group + step) % 2], scores);
      stage_key_terms(terms, std::true_type{});
      Products::template wait<0>(scores);
      terms.set(scores);
      Products::multiply(queries, shared.keys, scores);
      stage_query_terms(terms, step);
      Products::template wait<0>(scores);
    }
    // Past this barrier values and staged terms are complete, and keys and the last chunk are no
    // longer read.
    wait_for_copies();
    if (tile + 1 < range.end) {
      fetch_keys(tile + 1);
      fetch_chunk(shared.position_keys[(step + 1) % 2],
                  shared.position_queries[(3 - (step + 1) % 3) % 3], tile + 1, 0);
      cute::cp_async_fence();
    }
    if (!has_rows) continue;
    add_staged<2 * kKeys>(scores, staged_queries + warp_row * kPitchQueries + step % 2 * kKeys);
    add_staged<kKeys>(scores, staged_keys + warp_row * kPitchKeys);
    scale_scores(scores, args.scale);
    if (!sees_all(params, slab, Traits::kRows, key, kKeys)) {
      mask_scores(scores, params.window, sequence.k_length, first_position + block_row, key);
    }
    update_softmax(scores, output, maximum, sum);
    Fragment probabilities[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) probabilities[k] = pack_a<T>(scores[2 * k], scores[2 * k + 1]);
    Products::accumulate(probabilities, shared.values, output);
    Products::template wait<0>(output);
  }
  __syncthreads();  // the output is staged where the staged terms were
  if (!has_rows) return;
  const float2 factors = {inverse_or_zero(quad_sum(sum.x)), inverse_or_zero(quad_sum(sum.y))};
  store_output<T, kKeys>(params, slab, block_row, output, factors,
                         staged_keys + warp_row * kPitchKeys);
}

}  // namespace packhorse::cuda
