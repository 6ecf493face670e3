// Attention over pages for few queries: the tokens that a step of generation adds to texts. Its
// time is that of reading the cached keys and values once.
//
// A block takes one chunk of keys after the other, for up to 8 or 16 rows, and each of its warps a
// tile of it: the warp copies the tile's keys and values to shared memory, and finds the tile's
// maxima, sums and products as paged_attention_kernel does, without regard to other warps. Copies
// of the next tile are under way while a warp computes; those of the first while the kernel before
// still runs. A tile of large heads is copied on Hopper by TMA (the Tensor Memory Accelerator) at
// the word of one lane; elsewhere, and for small heads, of which it would come later, each lane
// copies some of it.
//
// The tokens of this step come from where they were computed, in place of what their page holds
// there, and the block that has the slab's first rows also writes them to their page: so no kernel
// has to do that first.
//
// Where several blocks have chunks of the same rows, each leaves what it has found in the
// workspace, and the last to finish merges all chunks in ascending order.
//
// A step asks for this kernel once for every layer, and each time its instructions have to come
// from memory again: so what is rare is kept out of the way of what is not.
#pragma once

#include <algorithm>
#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/attention/attention_pages_schedule.cuh"
#include "cuda/pipeline_sm90.cuh"

namespace packhorse::cuda {

/// What TMA needs besides: maps of the pages as matrices [pages * Hkv * kPageTokens, d], whose
/// boxes are 64 columns of a tile.
struct FewKernelParams : PagedKernelParams {
  CUtensorMap key_map, value_map;
};

/// kRows: of a slab, 8 or 16.
template <int kDim_, int kRows_>
struct FewTraits {
  static constexpr int kDim = kDim_;
  static constexpr int kRows = kRows_;
  static constexpr int kWarps = kChunkTiles<kDim>;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kKeys = kTileKeys<kDim>;
  static constexpr int kTile = kKeys * kDim;
  /// What the warps have found in their tiles.
  struct Found {
    float sums[kWarps][kRows * kDim];
    float2 state[kWarps][kRows];  // maxima and sums
    uint64_t keys_here[kWarps];   // barriers of TMA
    uint64_t values_here[kWarps];
    int last;
  };
  static constexpr size_t kSharedBytes = 2 * kWarps * kTile * 2 + sizeof(Found);
#ifndef PACKHORSE_FEW_BLOCKS
#define PACKHORSE_FEW_BLOCKS 3
#endif
  /// Whether TMA copies tiles where there is one, and whether this is such a device.
  static constexpr bool kTmaHelps = kDim > 64;
#if __CUDA_ARCH__ >= 900
  static constexpr bool kTma = kTmaHelps;
#else
  static constexpr bool kTma = false;
#endif
  /// Blocks of a multiprocessor: what shared memory (of Hopper: others run fewer) has room for.
  static constexpr int kBlocks = static_cast<int>(
      std::min(size_t{PACKHORSE_FEW_BLOCKS}, size_t{228 * 1024} / (kSharedBytes + 1024)));
  static_assert(kBlocks > 0);
};

/// The place of element (row, column) in a tile of kKeys rows: 64 columns after the other, and
/// groups of eight elements are exchanged, so that the eight rows that ldmatrix reads at once lie
/// in different banks (CUDA driver API, CU_TENSOR_MAP_SWIZZLE_128B).
template <int kKeys>
__device__ int tile_place(int row, int column) {
  return column / 64 * (kKeys * 64) + row * 64 + ((column % 64) ^ (row % 8 * kVectorSize));
}

template <class T, int kDim, int kRows>
struct FewAttention {
  using Traits = FewTraits<kDim, kRows>;
  static constexpr int kThreads = Traits::kThreads;
  static constexpr int kKeys = Traits::kKeys;
  static constexpr int kAcross = kDim / kVectorSize;
  static constexpr int kRowsAtOnce = 32 / kAcross;  // of a tile, that a warp copies

  /// What this thread has merged of the chunks so far, where one block has all chunks of its rows.
  struct Kept {
    float2 sums;
    ChunkMerge merge;
  };

  const FewKernelParams& params;
  T* keys;    // of this warp
  T* values;  // of this warp
  Traits::Found& found;
  int warp = static_cast<int>(threadIdx.x) / 32;
  int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t phase = 0;  // of the barriers, for the tile that is awaited next
  Kept kept[kRows * (kDim / 64) / Traits::kWarps];

  __device__ FewAttention(const FewKernelParams& params, unsigned char* shared)
      : params(params),
        keys(reinterpret_cast<T*>(shared) + 2 * (threadIdx.x / 32) * Traits::kTile),
        values(keys + Traits::kTile),
        found(*reinterpret_cast<Traits::Found*>(shared + 4 * Traits::kWarps * Traits::kTile)) {
    if constexpr (Traits::kTma) {
      if (lane == 0) {
        sm90::TxBarrier::init(&found.keys_here[warp], 1);
        sm90::TxBarrier::init(&found.values_here[warp], 1);
        cutlass::arch::fence_barrier_init();
      }
      __syncwarp();
    }
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
    const int group = params.group;
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

  /// The row of the pages, as a matrix, with which this warp's tile begins.
  __device__ int64_t page_row(const FewWork& work, int page) const {
    constexpr int kTokens = static_cast<int>(kPageTokens);
    const int64_t head = static_cast<int64_t>(page) * params.args.num_kv_heads + work.slab.kv_head;
    return head * kTokens + first_key(work) % kTokens;
  }

  /// Whether this warp's tile has tokens of this step.
  __device__ bool has_new(const FewWork& work) const {
    return first_key(work) + kKeys > work.slab.position;
  }
  /// Whether this warp's tile has any keys.
  __device__ bool has_keys(const FewWork& work) const {
    return first_key(work) < work.slab.kv_length;
  }

  /// The barrier of this warp's keys, or values.
  __device__ uint64_t* here_of(bool of_keys) const {
    return of_keys ? &found.keys_here[warp] : &found.values_here[warp];
  }

  /// Starts copying this warp's tile of keys or values, as its page holds it.
  __device__ void copy_tile(const FewWork& work, int page, bool of_keys) const {
    if (!has_keys(work)) return;
    T* const to = of_keys ? keys : values;
    if constexpr (Traits::kTma) {
      if (lane > 0) return;
      uint64_t* const here = here_of(of_keys);
      sm90::TxBarrier::arrive_and_expect_tx(here, Traits::kTile * 2);
      const CUtensorMap* map = of_keys ? &params.key_map : &params.value_map;
      constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
      const int row = static_cast<int>(page_row(work, page));
#pragma unroll
      for (int box = 0; box < kDim / 64; ++box) {
        cute::SM90_TMA_LOAD_2D::copy(map, here, kHint, to + box * kKeys * 64, box * 64, row);
      }
    } else {
      const PagedAttentionParams& args = params.args;
      const int row = lane / kAcross;
      const int column = lane % kAcross * kVectorSize;
      const bool inside = column < args.head_dim;
      const T* at = static_cast<const T*>(of_keys ? args.keys : args.values);
      if (inside) at += (page_row(work, page) + row) * args.head_dim + column;
      const int64_t step = inside ? kRowsAtOnce * args.head_dim : 0;
#pragma unroll
      for (int i = 0; i < kKeys; i += kRowsAtOnce) {
        copy_vector_async(to + tile_place<kKeys>(row + i, column), at, inside);
        at += step;
      }
    }
  }
  /// Ends a group of the lanes' copies.
  __device__ void end_group() const {
    if constexpr (!Traits::kTma) cute::cp_async_fence();
  }
  /// Waits for this warp's keys, or values. Of the lanes' copies there are always two groups under
  /// way.
  __device__ void await_tile(bool of_keys) const {
    if constexpr (Traits::kTma) {
      sm90::TxBarrier::wait(here_of(of_keys), phase);
    } else {
      cute::cp_async_wait<1>();
      __syncwarp();
    }
  }

  /// Calls body(row of this warp's tile, column, where the token's keys or values lie) for the
  /// tokens of this step, by eight elements.
  template <class Body>
  __device__ void for_new(const FewWork& work, bool of_keys, Body body) const {
    const PagedAttentionParams& args = params.args;
    if (args.new_keys == nullptr) return;
    const int first = first_key(work);
    const int begin = max(0, work.slab.position - first);
    const int end = min(kKeys, work.slab.kv_length - first);
    const int column = lane % kAcross * kVectorSize;
    if (column >= args.head_dim) return;
    const T* fresh = static_cast<const T*>(of_keys ? args.new_keys : args.new_values) +
                     work.slab.kv_head * args.head_dim + column;
    const int64_t stride = of_keys ? args.new_key_stride : args.new_value_stride;
#pragma unroll 1
    for (int row = begin + lane / kAcross; row < end; row += kRowsAtOnce) {
      const int token = work.slab.q_begin + first + row - work.slab.position;
      body(row, column, fresh + token * stride);
    }
  }

  /// Puts the tokens of this step into this warp's tile, which has come from its page. Values past
  /// the sequence's end become zeros, since they are multiplied by zeros; keys there are masked.
  __device__ void put_new(const FewWork& work) const {
    if constexpr (Traits::kTma) {
      await_tile(false);
    } else {
      cute::cp_async_wait<0>();
      __syncwarp();
    }
#pragma unroll 1
    for (const bool of_keys : {true, false}) {
      T* const to = of_keys ? keys : values;
      for_new(work, of_keys, [&](int row, int column, const T* from) {
        copy_vector_async(to + tile_place<kKeys>(row, column), from, true);
      });
    }
    const int column = lane % kAcross * kVectorSize;
#pragma unroll 1
    for (int row = max(0, work.slab.kv_length - first_key(work)) + lane / kAcross; row < kKeys;
         row += kRowsAtOnce) {
      *reinterpret_cast<uint4*>(values + tile_place<kKeys>(row, column)) = {};
    }
    cute::cp_async_fence();
    cute::cp_async_wait<0>();
    if constexpr (Traits::kTma) {
      cutlass::arch::fence_view_async_shared();  // TMA writes the next tile to the same place
    }
    __syncwarp();
  }

  /// Writes the tokens of this step to their page. The step's sequence alone has that page.
  __device__ void store_new(const FewWork& work, int page) const {
    const PagedAttentionParams& args = params.args;
    if (work.slab.row > 0 || !has_new(work)) return;
#pragma unroll 1
    for (const bool of_keys : {true, false}) {
      T* const to =
          static_cast<T*>(of_keys ? args.keys : args.values) + page_row(work, page) * args.head_dim;
      for_new(work, of_keys, [&](int row, int column, const T* from) {
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

  /// Two neighbouring B operands of the keys' tile, or of the values'. A lane's row is a constant
  /// plus a multiple of eight, so the exchange of its columns (tile_place) is one of constants,
  /// too.
  __device__ Fragment load_keys(int n, int k) const {
    const int row = lane % 8 + lane / 16 * 8;
    const int swap = (lane % 8 * kVectorSize) ^ (lane / 8 % 2 * 8);
    return load_fragment(keys + row * 64 + ((k % 64) ^ swap) + k / 64 * (kKeys * 64) + n * 64);
  }
  __device__ Fragment load_values(int k, int n) const {
    const int row = lane % 16;
    const int swap = (lane % 8 * kVectorSize) ^ (lane / 16 * 8);
    return load_fragment_transposed(values + row * 64 + ((n % 64) ^ swap) + n / 64 * (kKeys * 64) +
                                    k * 64);
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
        found.state[warp][row] = h == 0 ? float2{maxima.x, sums.x} : float2{maxima.y, sums.y};
      }
      if (!has_keys(work)) continue;
      float* const to = found.sums[warp];
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        *reinterpret_cast<float2*>(to + sum_place(row, n * 8 + place.column)) = {
            output[n][2 * h], output[n][2 * h + 1]};
      }
    }
  }

  /// Calls body(row, column, index) for the pairs of columns of all rows, shared among the threads.
  /// `index` counts the calls of this thread.
  template <class Body>
  __device__ void for_each_pair(const FewWork& work, Body body) const {
    constexpr int kParts = kDim / 64;  // of a row: a pair for each lane of a warp
    int index = 0;
#pragma unroll 1
    for (int part = warp; part < rows_of(work) * kParts; part += Traits::kWarps) {
      const int column = part % kParts * 64 + 2 * lane;
      if (column < params.args.head_dim) body(part / kParts, column, index);
      ++index;
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
  __device__ void merge_tiles(const FewWork& work, bool last) {
    for_each_pair(work, [&](int row, int column, int index) {
      ChunkMerge merge;
      float2 sums = {0, 0};
#pragma unroll
      for (int tile = 0; tile < Traits::kWarps; ++tile) {
        const float2 state = found.state[tile][row];
        const float2 one =
            *reinterpret_cast<const float2*>(found.sums[tile] + sum_place(row, column));
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
      Kept all{{0, 0}, {}};
      if (work.chunk > work.chunks.first) all = kept[index];
      float2 factors;
      all.merge.add(merge.maximum, merge.sum, factors);
      all.sums.x = merge_chunk(all.sums.x, sums.x, factors);
      all.sums.y = merge_chunk(all.sums.y, sums.y, factors);
      if (last) return store(work, row, column, all.sums, all.merge.sum);
      kept[index] = all;
    });
  }

  /// Whether this block is the last of those that have chunks of these rows. All threads' writes
  /// come before: the barrier and one thread's release stand for all of them (PTX ISA, memory
  /// consistency model, causality order).
  __device__ bool is_last(const FewWork& work) const {
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
      found.last = last ? 1 : 0;
    }
    __syncthreads();
    return found.last != 0;
  }

  /// Merges all chunks of the rows from the workspace.
  __device__ void merge_chunks(const FewWork& work) const {
    const int head_dim = params.args.head_dim;
    const int count = work.chunks.count();
    const int64_t step = entry_step(work);
    for_each_pair(work, [&](int row, int column, int) {
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
    paged_attention_few_kernel(const __grid_constant__ FewKernelParams params) {
  using Attention = FewAttention<T, kDim, kRows>;
  extern __shared__ __align__(1024) unsigned char few_shared[];  // as TMA's exchange asks for
  Attention attention(params, few_shared);
  FewSchedule<kRows, kChunkKeys<kDim>> schedule(params);
  FewWork work;  // the current unit
  typename Attention::Queries queries;
  int page = 0;
  bool more = true;
  // What is in the pages is older than this step if the step's tokens come from elsewhere.
  if (params.args.new_keys == nullptr) wait_for_previous_kernel();
  // A turn computes a unit, and brings the next one. It starts with nothing to compute.
  for (int unit = -1; more; ++unit) {
    const bool has_keys = unit >= 0 && attention.has_keys(work);
    float scores[Attention::kKeys / 8][4] = {};
    if (has_keys) {
      attention.await_tile(true);
      if (attention.has_new(work)) attention.put_new(work);
      attention.score(work, queries, scores);
    }
    const bool same = unit >= 0 && schedule.continues();
    more = schedule.next();
    const FewWork& next = schedule.work();
    const int next_page = more ? attention.page_of(next) : 0;
    __syncwarp();  // the keys have been read
    if (more) attention.copy_tile(next, next_page, true);
    attention.end_group();
    float2 maxima = {-INFINITY, -INFINITY};
    float2 sums = {0, 0};
    float output[kDim / 8][4] = {};
    if (has_keys) {
      tile_softmax(scores, maxima, sums);
      attention.await_tile(false);
      attention.weigh(scores, output);
      attention.phase ^= 1;
      __syncwarp();  // the values have been read
    }
    if (more) attention.copy_tile(next, next_page, false);
    attention.end_group();
    if (unit < 0) {
      // Only the tokens of this step, and the queries, are the previous kernels' work.
      wait_for_previous_kernel();
      let_next_kernel_start();
    }
    if (more && !same) attention.load_queries(queries, next);
    if (unit >= 0) {
      if (unit > 0) __syncthreads();  // what was found in the unit before has been merged
      attention.leave_tile(work, output, maxima, sums);
      __syncthreads();
      attention.merge_tiles(work, !same);
      if (!same && work.blocks > 1 && attention.is_last(work)) attention.merge_chunks(work);
      attention.store_new(work, page);
    }
    work = next;
    page = next_page;
  }
}

}  // namespace packhorse::cuda
