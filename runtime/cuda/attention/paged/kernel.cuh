// Attention of new tokens over pages of a key-value cache, for compute capability 8.0 and up.
//
// The kernels for prompts and for single tokens compute a row as one expression of the row's own
// position, whatever the batch, the step, the launch and the kernel:
//
//   - Keys are taken in tiles, counted from position 0 of the sequence. A tile's scores are
//     products in steps of 16 columns by mma.sync, or by wgmma with the same bits; its
//     probabilities are relative to the maximum of the tile alone and rounded to 16 bits; its sums
//     start from zero. So tiles can be computed side by side.
//   - The sum of a tile's probabilities has one order (tile_softmax), however a kernel lays them
//     out.
//   - Results of tiles are merged in ascending order (merge_chunk), two or four to a chunk, and
//     then those of chunks. A block may walk through all chunks of its rows, or several blocks
//     compute some each and leave their results in memory: the operations on a row are the same.
//   - Keys that a row does not see change no bit: a masked score is -infinity, its probability 0,
//     and a tile or chunk without a visible key is not merged.
//
// A block computes rows of one sequence and one key/value head. The query heads that share this
// key/value head lie side by side: row r is token r / group and head r % group, so that a key is
// read once for all of them, and a single token of a model with grouped heads fills a tile.
#pragma once

#include "core/math.h"
#include "cuda/attention/paged/paged.h"
#include "cuda/attention/paged/tile_softmax.cuh"
#include "cuda/attention/portable/scores.cuh"
#include "cuda/attention/varlen.cuh"
#include "cuda/common/launch.cuh"

namespace packhorse::cuda {

/// Keys of a tile and of a chunk. They are constants of the head size, because they decide the
/// order of sums. A block can hold all keys and values of a chunk in shared memory.
template <int kDim>
inline constexpr int kTileKeys = kDim <= 128 ? 64 : 32;
template <int kDim>
inline constexpr int kChunkTiles = kDim > 64 && kDim <= 128 ? 2 : 4;
template <int kDim>
inline constexpr int kChunkKeys = kChunkTiles<kDim> * kTileKeys<kDim>;

/// Sizes of a block, each of whose warps has 16 rows.
template <int kDim_, int kWarps>
struct PagedTraits {
  static constexpr int kDim = kDim_;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRows = 16 * kWarps;
  static constexpr int kKeys = kTileKeys<kDim>;
  static constexpr int kSlab = kRows * kPitch<kDim>;
  static constexpr int kTile = kKeys * kPitch<kDim>;
  static constexpr size_t kSharedBytes = (kSlab + 4 * kTile) * 2;  // keys and values twice
  static constexpr int kBlocks = kDim <= 64 ? 3 : 1;               // at least, on a multiprocessor
  static_assert(kPageTokens % kKeys == 0 && kChunkKeys<kDim> % kPageTokens == 0);
};

/// Kernel parameters: the arguments, the mask as a window of keys, and memory for unfinished rows.
struct PagedKernelParams {
  AttentionArgs args;
  KeyWindow window;
  /// Partial results of rows, one entry per row and chunk, which are merged later: sums of
  /// probabilities times values [entries, head_dim], and {maximum, sum of probabilities} [entries].
  /// The entries of a sequence are [its chunks, its tokens, H], sequence after sequence.
  float* sums = nullptr;
  float2* state = nullptr;
  int64_t entries = 0;
  unsigned* counters = nullptr;  // [slots, Hkv]: zeros, before and after a launch
  int32_t sm_count = 0;
  int group = 1;  // query heads that share a key/value head
  /// 2^32 / group, rounded up: a division by `group` becomes a product, exact for rows below
  /// 2^32 / group.
  uint64_t group_inverse = 0;

  /// The token of a row.
  __device__ int token_of(int row) const {
    return static_cast<int>(static_cast<uint64_t>(row) * group_inverse >> 32);
  }
  __device__ int sequences() const {
    return args.queries.counts == nullptr ? static_cast<int>(args.queries.num_sequences)
                                          : args.queries.counts[1];
  }
};

/// Parameters of the kernels, without a workspace.
inline PagedKernelParams paged_kernel_params(const AttentionArgs& args, const DeviceCaps& caps) {
  PagedKernelParams params{.args = args, .window = key_window(args.mask)};
  params.sm_count = caps.sm_count;
  params.group = args.num_heads / args.num_kv_heads;
  const auto group = static_cast<uint64_t>(params.group);
  params.group_inverse = ceil_div(uint64_t{1} << 32, group);
  return params;
}

/// Rows of one sequence and key/value head.
struct PagedSlab {
  int sequence;
  int q_begin;   // the sequence's first token in the batch
  int rows;      // rows of the sequence: tokens times heads of the group
  int row;       // first row of the slab
  int position;  // position of the sequence's first new token
  int kv_length;
  int kv_head;
};

/// True where scores have a cap or a term by position, whose many instructions kernels keep apart.
__host__ __device__ inline bool has_rare_scores(const AttentionArgs& args) {
  return args.soft_cap != 0 || args.term.slopes != nullptr || args.term.by_distance != nullptr;
}

/// Slots of `rows` rows that hold every slab of a batch: sequence b's slabs begin at slot
/// cu_seqlens[b] * group / rows + b. The slots of two sequences never overlap, so a block finds its
/// slab by a search alone.
inline int64_t paged_slots(const AttentionArgs& args, int rows) {
  const int64_t group = args.num_heads / args.num_kv_heads;
  return args.queries.num_tokens * group / rows + args.queries.num_sequences;
}

/// Finds the slab of slot blockIdx.x; false where there is none. Called by whole warps. The first
/// sequence need not begin at token 0; slots of tokens before it are empty.
template <int kRows>
__device__ bool find_paged_slab(const PagedKernelParams& params, PagedSlab& slab) {
  const AttentionArgs& args = params.args;
  const int group = params.group;
  const auto first_slot = [&](int b) { return args.queries.cu_seqlens[b] * group / kRows + b; };
  const int sequences = params.sequences();
  if (sequences == 0) return false;
  // Slots are taken in descending order: rows near a sequence's end see the most keys, and a long
  // slab should not start last.
  const int slot = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  slab.sequence = warp_search(sequences, slot, first_slot);
  slab.q_begin = args.queries.cu_seqlens[slab.sequence];
  const int q_length = args.queries.cu_seqlens[slab.sequence + 1] - slab.q_begin;
  slab.rows = q_length * group;
  slab.row = (slot - first_slot(slab.sequence)) * kRows;
  slab.kv_length = args.pages.kv_lens[slab.sequence];
  slab.position = slab.kv_length - q_length;
  slab.kv_head = static_cast<int>(blockIdx.y);
  return slab.row >= 0 && slab.row < slab.rows;
}

/// Numbers of the pages of one sequence. Each lane of a warp holds one of 32 neighbouring entries
/// of the table, so that the table is read once for 32 pages. Called by whole warps.
class PageNumbers {
 public:
  __device__ PageNumbers(const int32_t* table, int count) : table_(table), count_(count) {}
  __device__ int operator[](int page) {
    if (page / 32 != block_) {
      block_ = page / 32;
      const int mine = block_ * 32 + static_cast<int>(threadIdx.x) % 32;
      held_ = mine < count_ ? table_[mine] : 0;
    }
    return __shfl_sync(kFullWarp, held_, page % 32);
  }

 private:
  const int32_t* table_;
  int count_;
  int block_ = -1;
  int held_ = 0;
};

/// Running maximum (of scores times log2(e)) and sum of a row, from which the factors for merging
/// the next chunk follow.
struct ChunkMerge {
  float maximum = -INFINITY;
  float sum = 0;

  /// Adds a chunk. `factors` receives that of the sums merged so far (x) and that of the chunk's
  /// (y).
  __device__ void add(float chunk_maximum, float chunk_sum, float2& factors) {
    factors = {1, 0};
    if (chunk_sum == 0) return;  // an empty chunk changes nothing; NaN is not empty
    const float highest = fmaxf(maximum, chunk_maximum);
    factors = {fast_exp2(maximum - highest), fast_exp2(chunk_maximum - highest)};
    maximum = highest;
    sum = __fmaf_rn(chunk_sum, factors.y, __fmul_rn(sum, factors.x));
  }
};

__device__ inline float merge_chunk(float merged, float chunk, float2 factors) {
  if (factors.y == 0) return merged;
  return __fmaf_rn(chunk, factors.y, __fmul_rn(merged, factors.x));
}

/// Sets scores of keys that a row does not see to -infinity. Parameters are those of
/// finish_paged_scores.
template <class Place, int kBlocks>
__device__ void mask_paged_scores(float (&scores)[kBlocks][4], const PagedKernelParams& params,
                                  const PagedSlab& slab, int row, int key) {
  const Place place;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int position = slab.position + params.token_of(row + place.row + half * Place::kRowStep);
    // Distance of the thread's first column from the first and from the last key that its row sees.
    const int from_low = key + place.column - (position - params.window.left);
    const int from_high =
        key + place.column - min(slab.kv_length - 1, position + params.window.right);
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int at = n * Place::kBlockStep + e * Place::kColumnStep;
        if (from_low + at < 0 || from_high + at > 0) scores[n][2 * half + e] = -INFINITY;
      }
    }
  }
}

/// Finishes the scores of this thread's two rows over a tile of keys from `key` on: scaled, capped,
/// with the term of ALiBi or that of buckets, times log2(e); -infinity where masked. `row`: the
/// warp's first row. Place: which of the rows and keys the thread has. A term of buckets goes with
/// a causal mask.
template <class Place = AccumulatorPlace, int kBlocks>
__device__ void finish_paged_scores(float (&scores)[kBlocks][4], const PagedKernelParams& params,
                                    const PagedSlab& slab, int row, int key) {
  const AttentionArgs& args = params.args;
  const Place place;
  const int group = params.group;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = row + place.row + half * Place::kRowStep;
    const int position = slab.position + r / group;
    const int low = position - params.window.left;
    const int high = min(slab.kv_length - 1, position + params.window.right);
    const float slope = args.term.slopes == nullptr || r >= slab.rows
                            ? 0
                            : args.term.slopes[slab.kv_head * group + r % group] * -kLog2e;
    const int farthest = args.term.max_distance;
    // The number of distance 0, from which those of larger ones go down.
    const float* const nearest =
        args.term.by_distance == nullptr || r >= slab.rows
            ? nullptr
            : args.term.by_distance +
                  static_cast<int64_t>(slab.kv_head * group + r % group) * (farthest + 1) +
                  farthest;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        const int at = key + n * Place::kBlockStep + place.column + e % 2 * Place::kColumnStep;
        float score = scores[n][e];
        if (args.soft_cap == 0) {
          score = __fmul_rn(score, args.scale * kLog2e);
        } else {
          score = args.soft_cap * kLog2e * tanhf(score * args.scale / args.soft_cap);
        }
        if (args.term.slopes != nullptr) {
          score = __fmaf_rn(slope, static_cast<float>(abs(at - position)), score);
        }
        if (nearest != nullptr) {
          score = __fmaf_rn(nearest[-min(max(position - at, 0), farthest)], kLog2e, score);
        }
        scores[n][e] = at < low || at > high ? -INFINITY : score;
      }
    }
  }
}

/// Finishes the scores of the slab's rows from `row` on with the keys from `key` on, without cap
/// and term: scaled, and masked where some row does not see some key.
template <class Place = AccumulatorPlace, int kBlocks>
__device__ void finish_plain_scores(float (&scores)[kBlocks][4], const PagedKernelParams& params,
                                    const PagedSlab& slab, int row, int key) {
#pragma unroll
  for (float (&block)[4] : scores) {
#pragma unroll
    for (float& score : block) score = __fmul_rn(score, params.args.scale * kLog2e);
  }
  const int first_position = slab.position + params.token_of(row);
  if (params.window.left == kUnlimitedWindow &&
      key + kBlocks * Place::kBlockStep <= min(first_position + 1, slab.kv_length)) {
    return;
  }
  mask_paged_scores<Place>(scores, params, slab, row, key);
}

/// Finishes the scores; those with a cap or a term by `finish_rare`, which does what
/// finish_paged_scores does and may keep its instructions out of the common path.
template <class Place = AccumulatorPlace, int kBlocks, class FinishRare>
__device__ void finish_scores(float (&scores)[kBlocks][4], const PagedKernelParams& params,
                              const PagedSlab& slab, int row, int key, FinishRare finish_rare) {
  if (has_rare_scores(params.args)) return finish_rare();
  finish_plain_scores<Place>(scores, params, slab, row, key);
}

/// The two rows of this thread, merged over several tiles or chunks.
template <int kBlocks>
struct MergedRows {
  float output[kBlocks][4] = {};
  ChunkMerge above, below;

  __device__ void add(const float (&chunk)[kBlocks][4], float2 maxima, float2 sums) {
    float2 factors_above, factors_below;
    above.add(maxima.x, sums.x, factors_above);
    below.add(maxima.y, sums.y, factors_below);
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      output[n][0] = merge_chunk(output[n][0], chunk[n][0], factors_above);
      output[n][1] = merge_chunk(output[n][1], chunk[n][1], factors_above);
      output[n][2] = merge_chunk(output[n][2], chunk[n][2], factors_below);
      output[n][3] = merge_chunk(output[n][3], chunk[n][3], factors_below);
    }
  }
  __device__ void add(const MergedRows& chunk) {
    add(chunk.output, {chunk.above.maximum, chunk.below.maximum},
        {chunk.above.sum, chunk.below.sum});
  }
};

/// Shared memory of paged_attention_kernel for keys and values of the current and the next tile, in
/// the dtype of the pages.
template <class T_, class Traits_>
struct PagedTiles {
  using T = T_;
  using Traits = Traits_;
  static constexpr int kDim = Traits::kDim;
  static constexpr int kKeys = Traits::kKeys;

  const AttentionArgs& args;
  T* const tiles;

  using Operand = T;  // the dtype of products

  __device__ PagedTiles(const AttentionArgs& args, void* shared)
      : args(args), tiles(static_cast<T*>(shared)) {}

  /// Starts copying the block's queries. row_at(row): a row's address, or null, for zeros.
  template <class RowAt>
  __device__ void fetch_queries(T* queries, RowAt row_at) const {
    constexpr int kAcross = kDim / kVectorSize;
    for (int at = static_cast<int>(threadIdx.x); at < Traits::kRows * kAcross;
         at += Traits::kThreads) {
      const int row = at / kAcross;
      const int column = at % kAcross * kVectorSize;
      const T* const from = column < args.head_dim ? row_at(row) : nullptr;
      copy_vector_async(queries + row * kPitch<kDim> + column,
                        from == nullptr ? static_cast<const T*>(args.q.data) : from + column,
                        from != nullptr);
    }
  }

  /// Starts copying a tile of keys, or of values. The tile begins at `row` of the pages as a matrix
  /// [pages * Hkv * kPageTokens, d], and its first `valid` rows have been written.
  __device__ void fetch(bool values, int tile, int64_t row, int valid) const {
    const T* from = static_cast<const T*>(values ? args.pages.values.data : args.pages.keys.data) +
                    row * args.head_dim;
    copy_tile_async<kKeys, kDim, Traits::kThreads>(at(values, tile), from, args.head_dim, valid,
                                                   args.head_dim);
  }
  /// Does nothing: only pages in e4m3 are converted, by each thread after its own copies of a tile
  /// are done and before the block's barrier.
  __device__ void receive(bool /*values*/, int /*tile*/) const {}
  __device__ T* at(bool values, int tile) const {
    return tiles + ((values ? 2 : 0) + tile % 2) * Traits::kTile;
  }
  /// Do nothing: only pages in e4m3 have scales of keys and values.
  template <int kBlocks>
  __device__ void scale_scores(int /*tile*/, float (& /*scores*/)[kBlocks][4]) const {}
  template <int kBlocks>
  __device__ float2 scale_probabilities(int /*tile*/, float (& /*p*/)[kBlocks][4]) const {
    return {1, 1};
  }
  template <int kBlocks>
  __device__ void restore(float (& /*output*/)[kBlocks][4], float2 /*units*/) const {}
};

/// Computes rows of many queries. A block walks through all chunks that its rows see.
template <class Tiles>
__global__ void __launch_bounds__(Tiles::Traits::kThreads, Tiles::Traits::kBlocks)
    paged_attention_kernel(const __grid_constant__ PagedKernelParams params) {
  using T = typename Tiles::T;
  using Traits = typename Tiles::Traits;
  constexpr int kDim = Traits::kDim;
  constexpr int kKeys = Traits::kKeys;
  constexpr int kPageTiles = static_cast<int>(kPageTokens) / kKeys;
  constexpr int kBlocks = kKeys / 8;
  extern __shared__ __align__(16) unsigned char shared[];
  using Operand = typename Tiles::Operand;
  Operand* const queries = reinterpret_cast<Operand*>(shared);
  const AttentionArgs& args = params.args;
  const Tiles tiles(args, queries + Traits::kSlab);

  PagedSlab slab;
  const bool found = find_paged_slab<Traits::kRows>(params, slab);
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (!found) return;
  const int group = params.group;
  const int head_dim = args.head_dim;
  const int first_position = slab.position + slab.row / group;
  const int last_row = min(slab.row + Traits::kRows, slab.rows) - 1;
  const int last_position = slab.position + last_row / group;
  const int end_key = min(slab.kv_length, last_position + params.window.right + 1);
  const int begin = max(0, first_position - params.window.left) / kKeys;
  const int end = end_key <= 0 ? 0 : ceil_div(end_key, kKeys);

  const auto row_pointer = [&](auto* base, int64_t stride, int row) {
    const int r = slab.row + row;
    return base + (slab.q_begin + r / group) * stride +
           (slab.kv_head * group + r % group) * head_dim;
  };
  tiles.fetch_queries(queries, [&](int row) {
    const T* const q = static_cast<const T*>(args.q.data);
    return slab.row + row < slab.rows ? row_pointer(q, args.q.row_stride, row) : nullptr;
  });

  PageNumbers pages(
      args.pages.table + static_cast<int64_t>(slab.sequence) * args.pages.table_stride,
      ceil_div(slab.kv_length, static_cast<int>(kPageTokens)));
  // fetch commits one cp.async group per tile of keys or values, and an empty one past the last
  // tile. A tile's keys, and later its values, have arrived when all but the two latest groups
  // have.
  const auto fetch = [&](bool values, int tile) {
    if (tile < end) {
      const int64_t page = pages[tile / kPageTiles];
      const int64_t row =
          (page * args.num_kv_heads + slab.kv_head) * kPageTokens + tile % kPageTiles * kKeys;
      tiles.fetch(values, tile, row, slab.kv_length - tile * kKeys);
    }
    cute::cp_async_fence();
  };
  fetch(false, begin);
  fetch(true, begin);

  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  Operand* const warp_queries = queries + warp_row * kPitch<kDim>;
  MergedRows<kDim / 8> chunk, merged;

  for (int tile = begin; tile < end; ++tile) {
    fetch(false, tile + 1);
    cute::cp_async_wait<2>();
    tiles.receive(false, tile);
    __syncthreads();
    float scores[1][kBlocks][4] = {};
    accumulate_scores<Operand, kDim, kKeys, 1>(scores, warp_queries, tiles.at(false, tile));
    tiles.scale_scores(tile, scores[0]);
    const int row = slab.row + warp_row;
    finish_scores(scores[0], params, slab, row, tile * kKeys,
                  [&] { finish_paged_scores(scores[0], params, slab, row, tile * kKeys); });
    float2 maxima, sums;
    tile_softmax(scores[0], maxima, sums);

    fetch(true, tile + 1);
    cute::cp_async_wait<2>();
    tiles.receive(true, tile);
    __syncthreads();
    const float2 units = tiles.scale_probabilities(tile, scores[0]);
    float output[1][kDim / 8][4] = {};
    accumulate_output<Operand, kDim, kKeys, 1>(output, scores, tiles.at(true, tile));
    tiles.restore(output[0], units);
    chunk.add(output[0], maxima, sums);
    if ((tile + 1) % kChunkTiles<kDim> == 0 || tile + 1 == end) {
      merged.add(chunk);
      chunk = {};
    }
  }
  cute::cp_async_wait<0>();
  __syncthreads();  // the output is staged where the queries were

  const AccumulatorPlace place;
  using Pair = typename Element<T>::Pair;
  T* const warp_results = reinterpret_cast<T*>(warp_queries);
  const float2 factors = {inverse_or_zero(merged.above.sum), inverse_or_zero(merged.below.sum)};
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
    T* at = warp_results + place.row * kPitch<kDim> + n * 8 + place.column;
    *reinterpret_cast<Pair*>(at) =
        Element<T>::pair(merged.output[n][0] * factors.x, merged.output[n][1] * factors.x);
    *reinterpret_cast<Pair*>(at + 8 * kPitch<kDim>) =
        Element<T>::pair(merged.output[n][2] * factors.y, merged.output[n][3] * factors.y);
  }
  __syncwarp();
  constexpr int kAcross = kDim / kVectorSize;
  T* out = static_cast<T*>(args.out.data);
  for (int at = static_cast<int>(threadIdx.x) % 32; at < 16 * kAcross; at += 32) {
    const int row = warp_row + at / kAcross;
    const int column = at % kAcross * kVectorSize;
    if (slab.row + row < slab.rows && column < head_dim) {
      *reinterpret_cast<uint4*>(row_pointer(out, args.out.row_stride, row) + column) =
          *reinterpret_cast<const uint4*>(warp_results + at / kAcross * kPitch<kDim> + column);
    }
  }
}

}  // namespace packhorse::cuda
