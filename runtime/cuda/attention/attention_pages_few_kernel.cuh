// Attention over pages for few queries: the tokens that a step of generation adds to texts. Its
// time is that of reading the cached keys and values once.
//
// A block takes one chunk of keys after the other, for up to 8 or 16 rows, and each of its warps a
// tile of it: the warp copies the tile's keys and values to shared memory, and finds the tile's
// maxima, sums and products as paged_attention_kernel does, without regard to other warps. Copies
// of the next tile are under way while a warp computes; those of the first, as far as they are
// older than this step, while the kernel before still runs.
//
// The tokens of this step come from where they were computed, and the block that has the slab's
// first rows also writes them to their page: so no kernel has to do that first.
//
// Where several blocks have chunks of the same rows, each leaves what it has found in the
// workspace, and the last to finish merges all chunks in ascending order.
//
// A step asks for this kernel once for every layer, and each time its instructions have to come
// from memory again: so what is rare is kept out of the way of what is not.
#pragma once

#include <algorithm>

#include "cuda/attention/attention_pages_schedule.cuh"

namespace packhorse::cuda {

/// kRows: of a slab, 8 or 16.
template <int kDim_, int kRows_>
struct FewTraits {
  static constexpr int kDim = kDim_;
  static constexpr int kRows = kRows_;
  static constexpr int kWarps = kChunkTiles<kDim>;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kKeys = kTileKeys<kDim>;
  static constexpr int kTile = kKeys * kDim;
  static constexpr size_t kSharedBytes = 2 * kWarps * kTile * 2 +
                                         (kWarps + 1) * kRows * kDim * sizeof(float) +
                                         (kWarps + 2) * kRows * sizeof(float2);
  /// Blocks of a multiprocessor: what shared memory (of Hopper: others run fewer) has room for. A
  /// third would leave a thread too few registers.
  static constexpr int kBlocks =
      static_cast<int>(std::min(size_t{2}, size_t{228 * 1024} / (kSharedBytes + 1024)));
  static_assert(kBlocks > 0);
};

/// The place of element (row, column) in a tile: groups of eight elements are exchanged, so that
/// the eight rows that ldmatrix reads at once lie in different banks.
template <int kDim>
__device__ int tile_place(int row, int column) {
  return row * kDim + (column ^ (row % 8 * kVectorSize));
}

template <class T, int kDim, int kRows>
struct FewAttention {
  using Traits = FewTraits<kDim, kRows>;
  static constexpr int kThreads = Traits::kThreads;
  static constexpr int kKeys = Traits::kKeys;
  static constexpr int kAcross = kDim / kVectorSize;
  static constexpr int kRowsAtOnce = 32 / kAcross;  // of a tile, that a warp copies

  const PagedKernelParams& params;
  T* keys;               // of this warp
  T* values;             // of this warp
  float* found;          // [kWarps][kRows][kDim]: what warps have found in their tiles
  float* merged;         // [kRows][kDim]: where one block has all chunks of its rows
  float2* found_state;   // [kWarps][kRows]: maxima and sums
  float2* merged_state;  // [2][kRows]: of even and odd units, because threads read each other's
  int warp = static_cast<int>(threadIdx.x) / 32;
  int lane = static_cast<int>(threadIdx.x) % 32;

  __device__ FewAttention(const PagedKernelParams& params, unsigned char* shared) : params(params) {
    keys = reinterpret_cast<T*>(shared) + 2 * warp * Traits::kTile;
    values = keys + Traits::kTile;
    found = reinterpret_cast<float*>(shared + 2 * Traits::kWarps * Traits::kTile * sizeof(T));
    merged = found + Traits::kWarps * kRows * kDim;
    found_state = reinterpret_cast<float2*>(merged + kRows * kDim);
    merged_state = found_state + Traits::kWarps * kRows;
  }

  /// Rows of the slab that exist.
  __device__ static int rows_of(const FewWork& work) {
    return min(kRows, work.slab.rows - work.slab.row);
  }

  /// The token of its sequence and the query head that a row of the slab is of.
  struct Row {
    int token;
    int head;
  };
  __device__ Row row_of(const FewWork& work, int row) const {
    const int r = work.slab.row + row;
    const int token = params.token_of(r);
    const int group = params.group();
    return {token, work.slab.kv_head * group + r - token * group};
  }
  template <class Base>
  __device__ Base* row_pointer(const FewWork& work, Base* base, int64_t stride, int row) const {
    const Row its = row_of(work, row);
    return base + (work.slab.q_begin + its.token) * stride +
           static_cast<int64_t>(its.head) * params.args.head_dim;
  }

  /// The place in the workspace of what a row finds in the sequence's first chunk; that of the
  /// next chunk is `entry_step` further.
  __device__ int64_t entry_of(const FewWork& work, int row) const {
    const Row its = row_of(work, row);
    return work.entry + static_cast<int64_t>(its.token) * params.args.num_heads + its.head;
  }
  __device__ int64_t entry_step(const FewWork& work) const {
    return static_cast<int64_t>(params.token_of(work.slab.rows)) * params.args.num_heads;
  }

  /// Where this warp's tile begins.
  __device__ int first_key(const FewWork& work) const {
    return work.chunk * kChunkKeys<kDim> + warp * kKeys;
  }
  /// The page of this warp's tile; 0 past the sequence's end.
  __device__ int page_of(const FewWork& work) const {
    const int first = first_key(work);
    const PagedAttentionParams& args = params.args;
    const int32_t* table =
        args.table + static_cast<int64_t>(work.slab.sequence) * args.table_stride;
    return first < work.slab.kv_length ? table[first / static_cast<int>(kPageTokens)] : 0;
  }

  /// The rows of this warp's tile in its page.
  template <class Base>
  __device__ Base* page_rows(const FewWork& work, int page, Base* pages) const {
    constexpr int kTokens = static_cast<int>(kPageTokens);
    const PagedAttentionParams& args = params.args;
    const int64_t head = static_cast<int64_t>(page) * args.num_kv_heads + work.slab.kv_head;
    return pages + (head * kTokens + first_key(work) % kTokens) * args.head_dim;
  }

  /// Whether this warp's tile has tokens of this step.
  __device__ bool has_new(const FewWork& work) const {
    return first_key(work) + kKeys > work.slab.position;
  }
  /// Whether this warp's tile has any keys.
  __device__ bool has_keys(const FewWork& work) const {
    return first_key(work) < work.slab.kv_length;
  }

  /// Starts copying this warp's tile of keys or values but for the tokens of this step. Values past
  /// the sequence's end become zeros, since they are multiplied by zeros; keys there are masked.
  __device__ void copy_old(const FewWork& work, int page, bool of_keys) const {
    const PagedAttentionParams& args = params.args;
    if (!has_keys(work)) return;
    const int row = lane / kAcross;
    const int column = lane % kAcross * kVectorSize;
    const T* at = page_rows(work, page, static_cast<const T*>(of_keys ? args.keys : args.values)) +
                  row * args.head_dim + column;
    T* const to = of_keys ? keys : values;
    const int old = work.slab.position - first_key(work) - row;
    const bool inside = column < args.head_dim;
    const int64_t step = inside ? kRowsAtOnce * args.head_dim : 0;
    if (!inside) at = static_cast<const T*>(args.keys);
#pragma unroll
    for (int i = 0; i < kKeys; i += kRowsAtOnce) {
      if (i < old) copy_vector_async(to + tile_place<kDim>(row + i, column), at, inside);
      at += step;
    }
    if (of_keys) return;
#pragma unroll 1
    for (int i = max(0, work.slab.kv_length - first_key(work)) + row; i < kKeys; i += kRowsAtOnce) {
      *reinterpret_cast<uint4*>(to + tile_place<kDim>(i, column)) = {};
    }
  }

  /// Calls body(row of this warp's tile, column, where the token's keys or values lie) for the
  /// tokens of this step, by eight elements.
  template <class Body>
  __device__ void for_new(const FewWork& work, int page, bool of_keys, Body body) const {
    const PagedAttentionParams& args = params.args;
    const int first = first_key(work);
    const int begin = max(0, work.slab.position - first);
    const int end = min(kKeys, work.slab.kv_length - first);
    const int column = lane % kAcross * kVectorSize;
    const T* fresh = static_cast<const T*>(of_keys ? args.new_keys : args.new_values);
    const int64_t stride = of_keys ? args.new_key_stride : args.new_value_stride;
    const T* pages = static_cast<const T*>(of_keys ? args.keys : args.values);
#pragma unroll 1
    for (int row = begin + lane / kAcross; row < end; row += kRowsAtOnce) {
      const int token = work.slab.q_begin + first + row - work.slab.position;
      const T* from = fresh == nullptr ? page_rows(work, page, pages) + row * args.head_dim
                                       : fresh + token * stride + work.slab.kv_head * args.head_dim;
      body(row, column, from + column);
    }
  }

  /// Starts copying the tokens of this step.
  __device__ void copy_new(const FewWork& work, int page, bool of_keys) const {
    T* const to = of_keys ? keys : values;
    for_new(work, page, of_keys, [&](int row, int column, const T* from) {
      const bool inside = column < params.args.head_dim;
      copy_vector_async(to + tile_place<kDim>(row, column),
                        inside ? from : static_cast<const T*>(params.args.keys), inside);
    });
  }

  /// Writes the tokens of this step to their page. The step's sequence alone has that page.
  __device__ void store_new(const FewWork& work, int page) const {
    const PagedAttentionParams& args = params.args;
    if (args.new_keys == nullptr || work.slab.row > 0) return;
#pragma unroll 1
    for (const bool of_keys : {true, false}) {
      T* const to = page_rows(work, page, static_cast<T*>(of_keys ? args.keys : args.values));
      for_new(work, page, of_keys, [&](int row, int column, const T* from) {
        if (column >= args.head_dim) return;
        *reinterpret_cast<uint4*>(to + row * args.head_dim + column) =
            *reinterpret_cast<const uint4*>(from);
      });
    }
  }

  /// The queries as operands of products: rows that do not exist are zeros.
  struct Queries {
    Fragment x[kDim / 16];
  };

  __device__ void load_queries(Queries& queries, const FewWork& work) const {
    const AccumulatorPlace place;
    const int head_dim = params.args.head_dim;
    const T* const q = static_cast<const T*>(params.args.q);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = place.row + h * 8;
      const bool exists = h * 8 < kRows && row < rows_of(work);
      const T* at = exists ? row_pointer(work, q, params.args.q_row_stride, row) : q;
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int column = k * 16 + half * 8 + place.column;
          queries.x[k].x[2 * half + h] =
              exists && column < head_dim ? __ldcg(reinterpret_cast<const unsigned*>(at + column))
                                          : 0;
        }
      }
    }
  }

  /// Two neighbouring B operands of the keys' tile, or of the values'.
  __device__ Fragment load_keys(int n, int k) const {
    const int row = n + lane % 8 + lane / 16 * 8;
    return load_fragment(keys + tile_place<kDim>(row, k + lane / 8 % 2 * 8));
  }
  __device__ Fragment load_values(int k, int n) const {
    return load_fragment_transposed(values + tile_place<kDim>(k + lane % 16, n + lane / 16 * 8));
  }

  /// Scores with a cap or with ALiBi: a function of its own, whose instructions are out of the way
  /// of other steps.
  __device__ void finish_rare(const FewWork& work, float (&scores)[kKeys / 8][4]) const {
    Scores moved;
    memcpy(moved.of, scores, sizeof(moved.of));
    finish_in_memory(params, work.slab, first_key(work), moved);
    memcpy(scores, moved.of, sizeof(moved.of));
  }
  struct Scores {
    float of[kKeys / 8][4];
  };
  __device__ static __noinline__ void finish_in_memory(const PagedKernelParams& params,
                                                       const PagedSlab& slab, int first,
                                                       Scores& scores) {
    finish_paged_scores(scores.of, params, slab, slab.row, first);
  }

  /// This warp's scores, masked where some row does not see some key.
  __device__ void score(const FewWork& work, const Queries& queries,
                        float (&scores)[kKeys / 8][4]) const {
    const PagedAttentionParams& args = params.args;
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        const Fragment b = load_keys(n * 16, k * 16);
        mma<T>(scores[2 * n], queries.x[k], b.x[0], b.x[1]);
        mma<T>(scores[2 * n + 1], queries.x[k], b.x[2], b.x[3]);
      }
    }
    const int first = first_key(work);
    if (args.soft_cap != 0 || args.slopes != nullptr) return finish_rare(work, scores);
#pragma unroll
    for (float (&block)[4] : scores) {
#pragma unroll
      for (float& score : block) score = __fmul_rn(score, args.scale * kLog2e);
    }
    const int first_position = work.slab.position + params.token_of(work.slab.row);
    if (params.window.left == kUnlimitedWindow &&
        first + kKeys <= min(first_position + 1, work.slab.kv_length)) {
      return;
    }
    mask_paged_scores(scores, params, work.slab, work.slab.row, first);
  }

  /// output += probabilities times values.
  __device__ void weigh(const float (&p)[kKeys / 8][4], float (&output)[kDim / 8][4]) const {
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      const Fragment a = pack_a<T>(p[2 * k], p[2 * k + 1]);
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {
        const Fragment b = load_values(k * 16, n * 16);
        mma<T>(output[2 * n], a, b.x[0], b.x[1]);
        mma<T>(output[2 * n + 1], a, b.x[2], b.x[3]);
      }
    }
  }

  /// The place of found and merged sums, exchanged as those of a tile are.
  __device__ static int sum_place(int row, int column) {
    return row * kDim + (column ^ (row % 4 * 8));
  }

  /// Leaves what the rows have found in this warp's tile where the block merges it: nothing where
  /// it has no keys.
  __device__ void leave_tile(const FewWork& work, const float (&output)[kDim / 8][4], float2 maxima,
                             float2 sums) const {
    const AccumulatorPlace place;
#pragma unroll
    for (int h = 0; h < kRows / 8; ++h) {
      const int row = place.row + h * 8;
      if (row >= rows_of(work)) continue;
      if (place.column == 0) {
        found_state[warp * kRows + row] =
            h == 0 ? float2{maxima.x, sums.x} : float2{maxima.y, sums.y};
      }
      if (!has_keys(work)) continue;
      float* const to = found + warp * kRows * kDim;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        *reinterpret_cast<float2*>(to + sum_place(row, n * 8 + place.column)) = {
            output[n][2 * h], output[n][2 * h + 1]};
      }
    }
  }

  /// Calls body(row, column) for the pairs of columns of all rows, shared among the threads.
  template <class Body>
  __device__ void for_each_pair(const FewWork& work, Body body) const {
    constexpr int kParts = kDim / 64;  // of a row: a pair for each lane of a warp
#pragma unroll 1
    for (int part = warp; part < rows_of(work) * kParts; part += Traits::kWarps) {
      const int column = part % kParts * 64 + 2 * lane;
      if (column < params.args.head_dim) body(part / kParts, column);
    }
  }

  __device__ void store(const FewWork& work, int row, int column, float2 sums, float sum) const {
    const float factor = inverse_or_zero(sum);
    T* out = row_pointer(work, static_cast<T*>(params.args.out), params.args.out_row_stride, row);
    *reinterpret_cast<typename Element<T>::Pair*>(out + column) =
        Element<T>::pair(sums.x * factor, sums.y * factor);
  }

  /// Merges the tiles of a chunk. What that gives goes to the workspace; or, if no other block has
  /// chunks of these rows, it is merged with the chunks before, and is the result if it is the
  /// last.
  __device__ void merge_tiles(const FewWork& work, bool last, int unit) const {
    for_each_pair(work, [&](int row, int column) {
      ChunkMerge merge;
      float2 sums = {0, 0};
#pragma unroll
      for (int tile = 0; tile < Traits::kWarps; ++tile) {
        const float2 state = found_state[tile * kRows + row];
        const float2 one =
            *reinterpret_cast<const float2*>(found + tile * kRows * kDim + sum_place(row, column));
        float2 factors;
        merge.add(state.x, state.y, factors);
        sums.x = merge_chunk(sums.x, one.x, factors);
        sums.y = merge_chunk(sums.y, one.y, factors);
      }
      if (work.blocks > 1) {
        const int64_t entry =
            entry_of(work, row) + (work.chunk - work.chunks.first) * entry_step(work);
        if (column == 0) params.state[entry] = {merge.maximum, merge.sum};
        *reinterpret_cast<float2*>(params.sums + entry * params.args.head_dim + column) = sums;
        return;
      }
      float2* const kept = reinterpret_cast<float2*>(merged + sum_place(row, column));
      ChunkMerge all;
      float2 before = {0, 0};
      if (work.chunk > work.chunks.first) {
        const float2 state = merged_state[(unit + 1) % 2 * kRows + row];
        all.maximum = state.x;
        all.sum = state.y;
        before = *kept;
      }
      float2 factors;
      all.add(merge.maximum, merge.sum, factors);
      before.x = merge_chunk(before.x, sums.x, factors);
      before.y = merge_chunk(before.y, sums.y, factors);
      if (last) return store(work, row, column, before, all.sum);
      *kept = before;
      if (column == 0) merged_state[unit % 2 * kRows + row] = {all.maximum, all.sum};
    });
  }

  /// Whether this block is the last of those that have chunks of these rows. All threads' writes
  /// come before: the barrier and one thread's release stand for all of them (PTX ISA, memory
  /// consistency model, causality order).
  __device__ bool is_last(const FewWork& work, int* told) const {
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned* counter =
          params.counters + work.slot * params.args.num_kv_heads + work.slab.kv_head;
      const auto others = static_cast<unsigned>(work.blocks - 1);
      unsigned before;
      asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                   : "=r"(before)
                   : "l"(counter)
                   : "memory");
      const bool last = before == others;
      if (last) *counter = 0;  // as the next launch expects it
      *told = last ? 1 : 0;
    }
    __syncthreads();
    return *told != 0;
  }

  /// Merges all chunks of the rows from the workspace.
  __device__ void merge_chunks(const FewWork& work) const {
    const int head_dim = params.args.head_dim;
    const int count = work.chunks.count();
    const int64_t step = entry_step(work);
    for_each_pair(work, [&](int row, int column) {
      const int64_t entry = entry_of(work, row);
      const float2* state = params.state + entry;
      const float* sums = params.sums + entry * head_dim + column;
      ChunkMerge merge;
      float2 all = {0, 0};
      constexpr int kAhead = 8;  // chunks whose numbers are asked for at once
#pragma unroll 1
      for (int first = 0; first < count; first += kAhead) {
        float2 states[kAhead];
        float2 parts[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          states[i] = {-INFINITY, 0};  // of no chunk, which changes nothing
          if (first + i >= count) continue;
          states[i] = __ldcg(state);
          parts[i] = __ldcg(reinterpret_cast<const float2*>(sums));
          state += step;
          sums += step * head_dim;
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          float2 factors;
          merge.add(states[i].x, states[i].y, factors);
          all.x = merge_chunk(all.x, parts[i].x, factors);
          all.y = merge_chunk(all.y, parts[i].y, factors);
        }
      }
      store(work, row, column, all, merge.sum);
    });
  }
};

template <class T, int kDim, int kRows>
__global__ void __launch_bounds__(FewTraits<kDim, kRows>::kThreads, FewTraits<kDim, kRows>::kBlocks)
    paged_attention_few_kernel(const __grid_constant__ PagedKernelParams params) {
  using Attention = FewAttention<T, kDim, kRows>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ int told;
  const Attention attention(params, shared);
  FewSchedule<kRows, kChunkKeys<kDim>> schedule(params);
  FewWork work;  // the current unit
  typename Attention::Queries queries;
  int page = 0;
  bool more = true;
  // A turn computes a unit, and brings the next one. It starts with nothing to compute. The old
  // keys of a unit are a group of copies, and the next group is everything else.
  for (int unit = -1; more; ++unit) {
    const bool has_keys = unit >= 0 && attention.has_keys(work);
    float scores[Attention::kKeys / 8][4] = {};
    if (has_keys) {
      if (attention.has_new(work)) {
        cute::cp_async_wait<0>();
      } else {
        cute::cp_async_wait<1>();
      }
      __syncwarp();
      attention.score(work, queries, scores);
    }
    const bool same = unit >= 0 && schedule.continues();
    more = schedule.next();
    const FewWork& next = schedule.work();
    const int next_page = more ? attention.page_of(next) : 0;
    __syncwarp();  // the keys have been read
    if (more) attention.copy_old(next, next_page, true);
    cute::cp_async_fence();
    float2 maxima = {-INFINITY, -INFINITY};
    float2 sums = {0, 0};
    float output[kDim / 8][4] = {};
    if (has_keys) {
      tile_softmax(scores, maxima, sums);
      cute::cp_async_wait<1>();
      __syncwarp();
      attention.weigh(scores, output);
      __syncwarp();  // the values have been read
    }
    if (more) attention.copy_old(next, next_page, false);
    if (unit < 0) {
      // Only the tokens of this step, and the queries, are the previous kernels' work.
      wait_for_previous_kernel();
      let_next_kernel_start();
    }
    if (more) {
      if (!same) attention.load_queries(queries, next);
      attention.copy_new(next, next_page, true);
      attention.copy_new(next, next_page, false);
    }
    cute::cp_async_fence();
    if (unit >= 0) {
      if (unit > 0) __syncthreads();  // what was found in the unit before has been merged
      attention.leave_tile(work, output, maxima, sums);
      __syncthreads();
      attention.merge_tiles(work, !same, unit);
      if (!same && work.blocks > 1 && attention.is_last(work, &told)) attention.merge_chunks(work);
      attention.store_new(work, page);
    }
    work = next;
    page = next_page;
  }
}

}  // namespace packhorse::cuda
