// Disentangled attention (He et al., DeBERTa, arXiv 2006.03654) for compute capability 8.0 and
// later. The score of query i and key j is (q_i . k_j + q_i . pk[s] + k_j . pq[s]) * scale, where
// pk and pq are tables of position keys and position queries, and the slot s depends on i - j
// alone. The rest is online softmax over tiles of keys (attention/portable/online_kernel.cuh).
//
// Between a tile of 64 keys and a tile of queries only `queries + 63` distances i - j occur. The
// terms q . pk and k . pq are therefore matrix products with as many rows of each table, the tile's
// band of it. From one key tile to the next the bands move by 64 distances, so they are rings in
// shared memory that receive 64 new rows per key tile.
//
// The products are indexed by (distance, query) and (key, distance), while scores are indexed by
// (query, key). Each result is therefore rounded to the operands' dtype and stored in shared memory
// at its (query, key), from where it is read back in the register layout of the scores.
// Neighbouring results belong to different rows of scores, so these are stores of single 16-bit
// elements. Neither a row of scores nor a product with a whole table ever exists in memory.
#pragma once

#include <cute/numeric/integral_constant.hpp>

#include "cuda/attention/disentangled/bands.cuh"

namespace packhorse::cuda {

/// A block has 64 queries, and each of its four warps has 16 of them.
template <int kDim>
struct DisentangledTraits {
  static constexpr int kThreads = 128;
  static constexpr int kRows = 64;
  static constexpr int kKeys = 64;
  static constexpr int kBand = kRows + kKeys;  // distances that occur, and one more
  static constexpr int kTile = kKeys * kPitch<kDim>;
  static constexpr int kStaged = kRows * kPitch<kKeys>;  // elements of one staged term
  // Queries and results are staged in the shared memory of the staged terms.
  static_assert(kRows * kPitch<kDim> <= 2 * kStaged);
  static constexpr int kBlocksPerSm = kDim > 64 ? 1 : 3;
  static constexpr size_t kSharedBytes = 2 * (2 * kTile + 2 * kBand * kPitch<kDim> + 2 * kStaged);
};

/// staged[query, key] = q . pk for this warp's 16 queries, which are given as A operands, and all
/// 64 keys. `band(row)` points to 16 rows of the band from `row` on, where row 0 is the smallest
/// distance that this warp needs, that of the largest key.
template <class T, int kDim, class Row>
__device__ void stage_query_terms(T* staged, const Fragment (&queries)[kDim / 16], Row band) {
  constexpr int kPitchKeys = kPitch<64>;
  const AccumulatorPlace place;
  T* const base = staged + place.column * (kPitchKeys + 1) + 63 - place.row;
#pragma unroll
  for (int block = 0; block < 5; ++block) {
    float product[2][4] = {};  // [distances, queries]
    const T* const rows = band(16 * block);
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      // The registers of an A operand of 16 queries are also those of two B operands of 8 queries.
      const Fragment a = load_a<kDim>(rows, 0, k * 16);
      mma<T>(product[0], a, queries[k].x[0], queries[k].x[2]);
      mma<T>(product[1], a, queries[k].x[1], queries[k].x[3]);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const auto pair = Element<T>::pair(product[n][e], product[n][e + 1]);
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          const int query = 8 * n + place.column + x;
          const int distance = place.row + 4 * e;
          // Part of the first block of distances belongs to keys past 63, and part of the last one
          // to keys before 0; neither is stored.
          if (block == 0 && query > distance) continue;
          if (block == 4 && query <= distance) continue;
          base[(8 * n + x) * (kPitchKeys + 1) - 16 * block - 4 * e] = x == 0 ? pair.x : pair.y;
        }
      }
    }
  }
}

/// staged[query, key] = k . pq for this warp's 16 keys, whose rows begin at `keys`, and the first
/// `count` queries of the block; other queries may be left out. `band(row)` points to 16 rows of
/// the band from `row` on, where row 0 is the smallest distance that this warp needs, that of the
/// smallest query. `staged` points to the column of the warp's first key.
template <class T, int kDim, class Row>
__device__ void stage_key_terms(T* staged, const T* keys, Row band, int count) {
  constexpr int kPitchKeys = kPitch<64>;
  const AccumulatorPlace place;
  Fragment a[kDim / 16];
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) a[k] = load_a<kDim>(keys, 0, k * 16);
#pragma unroll
  for (int block = 0; block < 5; ++block) {
    if (16 * block - 15 >= count) break;
    float product[2][4] = {};  // [keys, distances]
    const T* const rows = band(16 * block);
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const Fragment b = load_b<kDim>(rows, 0, k * 16);
      mma<T>(product[0], a[k], b.x[0], b.x[1]);
      mma<T>(product[1], a[k], b.x[2], b.x[3]);
    }
    // For key place.row the query is 16 block + 8 n + place.column + x + place.row + 4 e - 15.
    const int first = 16 * block + place.column + place.row - 15;
    T* const base = staged + first * kPitchKeys + place.row;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const auto pair = Element<T>::pair(product[n][e], product[n][e + 1]);
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          const int query = first + 8 * n + x + 4 * e;
          if (block == 0 && query < 0) continue;
          if (block == 4 && query >= 64) continue;
          base[(8 * n + x + 4 * e) * kPitchKeys + 4 * e] = x == 0 ? pair.x : pair.y;
        }
      }
    }
  }
}

template <class T, int kDim>
__global__ void __launch_bounds__(DisentangledTraits<kDim>::kThreads,
                                  DisentangledTraits<kDim>::kBlocksPerSm)
    disentangled_attention_kernel(const __grid_constant__ DisentangledParams given) {
  using Traits = DisentangledTraits<kDim>;
  const PortableParams& params = given.portable;
  constexpr int kKeys = Traits::kKeys;
  constexpr int kBand = Traits::kBand;
  extern __shared__ __align__(16) unsigned char shared[];
  T* const keys = reinterpret_cast<T*>(shared);
  T* const values = keys + Traits::kTile;
  T* const key_band = values + Traits::kTile;
  T* const query_band = key_band + kBand * kPitch<kDim>;
  T* const staged_queries = query_band + kBand * kPitch<kDim>;
  T* const staged_keys = staged_queries + Traits::kStaged;

  QueryTile slab;
  const bool found = find_slab<Traits::kRows>(params, slab);
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (!found) return;
  const Sequence& sequence = slab.sequence;
  const KeyTiles range(slab, params.window, Traits::kRows, kKeys);
  const int head_dim = params.args.head_dim;
  // First of this warp's 16 queries, and of the 16 keys whose terms it computes.
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  const int count = min(Traits::kRows, sequence.q_length - slab.row);
  const bool has_rows = warp_row < count;
  const int first_position = sequence.k_length - sequence.q_length + slab.row;
  const bool of_queries = given.term.position_keys.data != nullptr;
  const bool of_keys = given.term.position_queries.data != nullptr;
  const Bands<T> bands(given.term, slab, head_dim, Traits::kRows);
  // Starts copying `rows` rows of both bands, those of the distances from `from` on, to ring rows
  // from `first` on.
  const auto fetch_bands = [&](auto rows, int first, int from) {
    bands.template fetch<decltype(rows)::value, Traits::kThreads, PaddedRows<kDim>>(
        key_band + first * kPitch<kDim>, query_band + first * kPitch<kDim>, from);
  };
  const auto fetch = [&](T* to, const T* from, int64_t stride, int tile) {
    copy_tile_async<kKeys, kDim, Traits::kThreads>(to, from, stride,
                                                   sequence.k_length - tile * kKeys, head_dim);
  };
  const auto fetch_keys = [&](int tile) {
    fetch(keys, params.k<T>(slab, tile * kKeys), params.args.k.row_stride, tile);
  };

  Fragment queries[kDim / 16];
  if (range.count() > 0) {
    copy_tile_async<Traits::kRows, kDim, Traits::kThreads>(
        staged_queries, params.q<T>(slab), params.args.q.row_stride, count, head_dim);
    fetch_keys(range.begin);
    fetch_bands(cute::Int<kBand>{}, 0, first_position - range.begin * kKeys - (kKeys - 1));
    cute::cp_async_fence();
    cute::cp_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      queries[k] = load_a<kDim>(staged_queries, warp_row, k * 16);
    }
  }

  float output[1][kDim / 8][4] = {};
  float2 maximum = {-INFINITY, -INFINITY};
  float2 sum = {};
  int turn = 0;  // the ring's row where the band of this key tile begins
  for (int tile = range.begin; tile < range.end; ++tile) {
    const int key = tile * kKeys;
    cute::cp_async_wait<0>();
    // Past this barrier keys and bands are complete, and values and staged terms are no longer
    // read.
    __syncthreads();
    fetch(values, params.v<T>(slab, key), params.args.v.row_stride, tile);
    cute::cp_async_fence();
    // 16 rows of a band that begin at a multiple of 16 lie side by side in the ring.
    const auto in_ring = [&](const T* band) {
      return [=](int row) {
        const int at = turn + row;
        return band + (at < kBand ? at : at - kBand) * kPitch<kDim>;
      };
    };

    float scores[1][kKeys / 8][4] = {};
    if (has_rows) {
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
        for (int n = 0; n < kKeys / 16; ++n) {
          const Fragment b = load_b<kDim>(keys, n * 16, k * 16);
          mma<T>(scores[0][2 * n], queries[k], b.x[0], b.x[1]);
          mma<T>(scores[0][2 * n + 1], queries[k], b.x[2], b.x[3]);
        }
      }
    }
    if (of_keys && key + warp_row < sequence.k_length) {
      const auto ring = in_ring(query_band);
      stage_key_terms<T, kDim>(
          staged_keys + warp_row, keys + warp_row * kPitch<kDim>,
          [&](int row) { return ring(kKeys - 16 - warp_row + row); }, count);
    }
    if (of_queries && has_rows) {
      const auto ring = in_ring(key_band);
      stage_query_terms<T, kDim>(staged_queries + warp_row * kPitch<kKeys>, queries,
                                 [&](int row) { return ring(warp_row + row); });
    }
    cute::cp_async_wait<0>();
    // Past this barrier values and staged terms are complete, and keys and the last rows of the
    // bands are no longer read.
    __syncthreads();
    if (tile + 1 < range.end) {
      turn = turn >= kKeys ? turn - kKeys : turn - kKeys + kBand;
      fetch_keys(tile + 1);
      fetch_bands(cute::Int<kKeys>{}, turn, first_position - key - kKeys - (kKeys - 1));
      cute::cp_async_fence();
    }
    if (!has_rows) continue;
    if (of_queries) add_staged<kKeys>(scores[0], staged_queries + warp_row * kPitch<kKeys>);
    if (of_keys) add_staged<kKeys>(scores[0], staged_keys + warp_row * kPitch<kKeys>);
    scale_scores(scores[0], params.args.scale);
    if (!sees_all(params, slab, Traits::kRows, key, kKeys)) {
      mask_scores(scores[0], params.window, sequence.k_length, first_position + warp_row, key);
    }
    update_softmax(scores[0], output[0], maximum, sum);
    accumulate_output<T, kDim, kKeys, 1>(output, scores, values);
  }
  __syncthreads();  // the output is staged where the staged terms were
  if (!has_rows) return;
  const float2 factors = {inverse_or_zero(quad_sum(sum.x)), inverse_or_zero(quad_sum(sum.y))};
  store_output<T, kDim>(params, slab, warp_row, output[0], factors,
                        staged_queries + warp_row * kPitch<kDim>);
}

}  // namespace packhorse::cuda
