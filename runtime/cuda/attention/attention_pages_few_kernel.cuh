// Attention over pages for few queries: the tokens that a step of generation adds to texts. Its
// time is that of reading the cached keys and values once.
//
// A block has up to 16 rows (a token, and the query heads of one key/value head) and some chunks of
// keys, one after the other. It asks for all keys and values of a chunk at once, and for those that
// are older than this step while the kernel before still runs. Each of its four warps multiplies
// the queries by a quarter of the keys; then each computes the softmax of all scores, and
// multiplies it by a quarter of the columns of the values. Every sum has the order that it has in
// paged_attention_kernel.
//
// What a block computes is over in a few microseconds, of which the first time through the code is
// a good part: instructions have to come from memory, too. So loops are not unrolled further than
// loads that shall be under way together.
//
// The blocks of the grid share the chunks of a step evenly. Where several blocks have chunks of the
// same rows, each leaves what it has found in the workspace, and the last to finish merges all
// chunks in ascending order.
#pragma once

#include "cuda/attention/attention_pages_kernel.cuh"

namespace packhorse::cuda {

/// Rows of a slab.
inline constexpr int kFewRows = 16;

template <int kDim_>
struct FewTraits {
  static constexpr int kDim = kDim_;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRows = kFewRows;
  static constexpr int kKeys = PagedTraits<kDim, 1>::kKeys;  // of a tile, as there
  static constexpr int kTiles = kChunkKeys / kKeys;
  static constexpr int kWarpKeys = kChunkKeys / kWarps;
  static constexpr int kWarpColumns = kDim / kWarps;
  static constexpr int kScorePitch = kChunkKeys + 8;
  static constexpr int kSlab = kRows * kPitch<kDim>;
  static constexpr int kChunk = kChunkKeys * kPitch<kDim>;
  static constexpr size_t kSharedBytes = (kSlab + 2 * kChunk) * 2 + kRows * kScorePitch * 4;
  // Blocks of a multiprocessor: what shared memory (of Hopper: others run fewer) has room for.
  static constexpr int kBlocks = static_cast<int>(size_t{227 * 1024} / (kSharedBytes + 1024));
};

/// Chunks of a sequence that queries of this step see: [first, end).
struct ChunkRange {
  int first, end;
  __device__ ChunkRange(const KeyWindow& window, int position, int kv_length) {
    first = max(0, position - window.left) / kChunkKeys;
    end = (kv_length + kChunkKeys - 1) / kChunkKeys;
  }
  __device__ int count() const { return max(0, end - first); }
};

/// What a block works on: rows of a slab, and chunks.
struct FewWork {
  PagedSlab slab;
  ChunkRange chunks{{}, 0, 0};  // of the sequence
  int begin = 0;                // of this block
  int end = 0;
  int blocks = 1;     // that have chunks of these rows
  int slot = 0;       // numbers the slabs of the step
  int64_t entry = 0;  // of the sequence's first row in the workspace; see `entry_of`
};

/// The sum of the values of this lane and those before.
template <class Value>
__device__ Value sum_to_lane(Value value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Value before = __shfl_up_sync(kFullWarp, value, step);
    if (lane >= step) value += before;
  }
  return value;
}

/// The sum of the values of all lanes.
__device__ inline int warp_sum_exact(int value) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(kFullWarp, value, mask);
  return value;
}

/// The work of a step, and its division. Called by whole warps; a lane looks at every 32nd
/// sequence.
class FewSchedule {
 public:
  __device__ explicit FewSchedule(const PagedKernelParams& params)
      : params_(params), sequences_(params.sequences()), first_(params, 0, sequences_) {
    int units = first_.chunks.count() * first_.slabs;
    for (int first = 32; first < sequences_; first += 32) {
      const Sequence mine(params, first, sequences_);
      units += mine.chunks.count() * mine.slabs;
    }
    units = warp_sum_exact(units) * params.args.num_kv_heads;
    const int blocks = static_cast<int>(gridDim.x);
    chunks_at_once_ = max(1, (units + blocks - 1) / blocks);
  }

  /// Finds the work of number `item`, in the order of sequences, chunks, slabs, heads.
  __device__ bool find(int item, FewWork& work) const {
    const PagedAttentionParams& args = params_.args;
    int64_t entries = 0;  // of the sequences before
    for (int first = 0; first < sequences_; first += 32) {
      const Sequence mine = first == 0 ? first_ : Sequence(params_, first, sequences_);
      const int64_t entries_end = entries + sum_to_lane(mine.entries);
      int blocks = (mine.chunks.count() + chunks_at_once_ - 1) / chunks_at_once_;
      if (entries_end > params_.entries) blocks = 1;
      blocks = max(blocks, 1);
      const int items = mine.slabs * args.num_kv_heads * blocks;
      const int items_end = sum_to_lane(items);
      const unsigned past = __ballot_sync(kFullWarp, item < items_end);
      if (past != 0) {
        const int from = __ffs(static_cast<int>(past)) - 1;
        const auto take = [&](auto value) { return __shfl_sync(kFullWarp, value, from); };
        PagedSlab& slab = work.slab;
        slab.sequence = first + from;
        slab.q_begin = take(mine.q_begin);
        slab.rows = take(mine.rows);
        slab.kv_length = take(mine.kv_length);
        slab.position = slab.kv_length - slab.rows / params_.group();
        work.chunks.first = take(mine.chunks.first);
        work.chunks.end = take(mine.chunks.end);
        work.entry = take(entries_end - mine.entries);
        work.blocks = take(blocks);
        const int slabs = take(mine.slabs);
        const int local = item - take(items_end - items);
        slab.kv_head = local % args.num_kv_heads;
        const int rest = local / args.num_kv_heads;
        slab.row = rest % slabs * kFewRows;
        work.slot = slab.q_begin * params_.group() / kFewRows + slab.sequence + rest % slabs;
        const int share = work.blocks == 1 ? work.chunks.count() : chunks_at_once_;
        work.begin = work.chunks.first + rest / slabs * share;
        work.end = min(work.begin + share, work.chunks.end);
        return true;
      }
      item -= __shfl_sync(kFullWarp, items_end, 31);
      entries = __shfl_sync(kFullWarp, entries_end, 31);
    }
    return false;
  }

 private:
  struct Sequence {
    int q_begin = 0;
    int rows = 0;
    int slabs = 0;
    int kv_length = 0;
    int64_t entries = 0;
    ChunkRange chunks{{}, 0, 0};

    __device__ Sequence(const PagedKernelParams& params, int first, int sequences) {
      const int b = first + static_cast<int>(threadIdx.x) % 32;
      if (b >= sequences) return;
      q_begin = params.args.cu_seqlens[b];
      const int q_length = params.args.cu_seqlens[b + 1] - q_begin;
      rows = q_length * params.group();
      slabs = (rows + kFewRows - 1) / kFewRows;
      kv_length = params.args.kv_lens[b];
      chunks = ChunkRange(params.window, kv_length - q_length, kv_length);
      entries = static_cast<int64_t>(chunks.count()) * q_length * params.args.num_heads;
    }
  };

  const PagedKernelParams& params_;
  const int sequences_;
  const Sequence first_;  // of the first 32, that of this lane
  int chunks_at_once_;
};

template <class T, int kDim>
struct FewAttention {
  using Traits = FewTraits<kDim>;
  static constexpr int kThreads = Traits::kThreads;
  static constexpr int kAcross = kDim / kVectorSize;

  const PagedKernelParams& params;
  T* queries;
  T* keys;
  T* values;
  float* scores;  // [kRows][kScorePitch]

  __device__ FewAttention(const PagedKernelParams& params, unsigned char* shared)
      : params(params),
        queries(reinterpret_cast<T*>(shared)),
        keys(queries + Traits::kSlab),
        values(keys + Traits::kChunk),
        scores(reinterpret_cast<float*>(values + Traits::kChunk)) {}

  template <class Base>
  __device__ Base* row_pointer(const FewWork& work, Base* base, int64_t stride, int row) const {
    const int r = work.slab.row + row;
    const int group = params.group();
    return base + (work.slab.q_begin + r / group) * stride +
           static_cast<int64_t>(work.slab.kv_head * group + r % group) * params.args.head_dim;
  }

  /// The place in the workspace of what a row finds in a chunk.
  __device__ int64_t entry_of(const FewWork& work, int chunk, int row) const {
    const int group = params.group();
    const int r = work.slab.row + row;
    const int q_length = work.slab.rows / group;
    return work.entry +
           (static_cast<int64_t>(chunk - work.chunks.first) * q_length + r / group) *
               params.args.num_heads +
           work.slab.kv_head * group + r % group;
  }

  /// Starts copying those keys (or values) of a chunk whose positions lie in [from, end); what is
  /// past the sequence's end becomes zeros.
  __device__ void copy_chunk(const FewWork& work, int chunk, bool of_keys, int from,
                             int end) const {
    const PagedAttentionParams& args = params.args;
    const int32_t* table =
        args.table + static_cast<int64_t>(work.slab.sequence) * args.table_stride;
    const T* pages = static_cast<const T*>(of_keys ? args.keys : args.values);
    T* const to = of_keys ? keys : values;
    constexpr int kTokens = static_cast<int>(kPageTokens);
    constexpr int kStep = kThreads / kAcross;  // rows that all threads copy at once
    static_assert(kTokens % kStep == 0);
    const int column = static_cast<int>(threadIdx.x) % kAcross * kVectorSize;
    for (int first = 0; first < kChunkKeys; first += kTokens) {
      const int position = chunk * kChunkKeys + first;
      const int64_t page = position < work.slab.kv_length ? table[position / kTokens] : 0;
      const T* source =
          pages + (page * args.num_kv_heads + work.slab.kv_head) * kTokens * args.head_dim;
      const int row = static_cast<int>(threadIdx.x) / kAcross;
      const T* at = source + row * args.head_dim + column;
      T* place = to + (first + row) * kPitch<kDim> + column;
      if (position >= from && position + kTokens <= end &&
          position + kTokens <= work.slab.kv_length && kDim == args.head_dim) {
#pragma unroll
        for (int i = 0; i < kTokens; i += kStep) {
          copy_vector_async(place + i * kPitch<kDim>, at + i * kDim, true);
        }
        continue;
      }
#pragma unroll 1
      for (int i = 0; i < kTokens; i += kStep) {
        const int its = position + row + i;
        if (its < from || its >= end) continue;
        const bool inside = its < work.slab.kv_length && column < args.head_dim;
        copy_vector_async(place + i * kPitch<kDim>, inside ? at + i * args.head_dim : pages,
                          inside);
      }
    }
  }

  __device__ void copy_queries(const FewWork& work) const {
    const PagedAttentionParams& args = params.args;
    const T* q = static_cast<const T*>(args.q);
    for (int at = static_cast<int>(threadIdx.x); at < Traits::kRows * kAcross; at += kThreads) {
      const int row = at / kAcross;
      const int column = at % kAcross * kVectorSize;
      const bool inside = work.slab.row + row < work.slab.rows && column < args.head_dim;
      copy_vector_async(queries + row * kPitch<kDim> + column,
                        inside ? row_pointer(work, q, args.q_row_stride, row) + column : q, inside);
    }
  }

  /// Whether a slab has more than eight rows. The lower ones of a product are left out otherwise.
  __device__ static bool has_lower(const FewWork& work) {
    return work.slab.rows - work.slab.row > 8;
  }

  /// This warp's quarter of the keys of a chunk: scores, masked, to shared memory. Where every row
  /// sees every key, there is no mask.
  __device__ void score(const FewWork& work, int chunk) const {
    const AccumulatorPlace place;
    const bool lower = has_lower(work);
    const PagedAttentionParams& args = params.args;
    const int first_position = work.slab.position + work.slab.row / params.group();
    const bool plain = args.soft_cap == 0 && args.slopes == nullptr &&
                       params.window.left == kUnlimitedWindow &&
                       (chunk + 1) * kChunkKeys <= min(first_position + 1, work.slab.kv_length);
    const int begin = static_cast<int>(threadIdx.x) / 32 * Traits::kWarpKeys;
#pragma unroll 1
    for (int first = begin; first < begin + Traits::kWarpKeys; first += 16) {
      float mine[1][2][4] = {};
      accumulate_scores<T, kDim, 16, 1>(mine, queries, keys + first * kPitch<kDim>);
      if (plain) {
#pragma unroll
        for (float& score : reinterpret_cast<float (&)[8]>(mine)) {
          score = __fmul_rn(score, args.scale * kLog2e);
        }
      } else {
        finish_paged_scores(mine[0], params, work.slab, work.slab.row, chunk * kChunkKeys + first);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float* to = scores + place.row * Traits::kScorePitch + first + n * 8 + place.column;
        *reinterpret_cast<float2*>(to) = {mine[0][n][0], mine[0][n][1]};
        if (lower) {
          *reinterpret_cast<float2*>(to + 8 * Traits::kScorePitch) = {mine[0][n][2], mine[0][n][3]};
        }
      }
    }
  }

  /// The scores of this lane's two rows: columns `column` and the next. -infinity for a lower row
  /// that does not exist.
  __device__ void load_scores(float (&to)[4], int column, bool lower) const {
    const AccumulatorPlace place;
    const float* from = scores + place.row * Traits::kScorePitch + column + place.column;
    const float2 above = *reinterpret_cast<const float2*>(from);
    const float2 below = lower ? *reinterpret_cast<const float2*>(from + 8 * Traits::kScorePitch)
                               : float2{-INFINITY, -INFINITY};
    to[0] = above.x;
    to[1] = above.y;
    to[2] = below.x;
    to[3] = below.y;
  }

  /// The softmax of all keys of a chunk, times this warp's quarter of the values' columns, in the
  /// steps of paged_attention_kernel.
  __device__ void weigh(const FewWork& work, float (&output)[Traits::kWarpColumns / 8][4],
                        float2& maxima, float2& sums) const {
    const bool lower = has_lower(work);
    const int column = static_cast<int>(threadIdx.x) / 32 * Traits::kWarpColumns;
    clear_chunk(output, maxima, sums);
#pragma unroll 1
    for (int tile = 0; tile < kChunkKeys; tile += Traits::kKeys) {
      float2 highest = {-INFINITY, -INFINITY};
#pragma unroll 4
      for (int n = 0; n < Traits::kKeys; n += 8) {
        float block[4];
        load_scores(block, tile + n, lower);
        highest.x = fmaxf(highest.x, fmaxf(block[0], block[1]));
        highest.y = fmaxf(highest.y, fmaxf(block[2], block[3]));
      }
      rescale(output, maxima, sums, {quad_max(highest.x), quad_max(highest.y)});
#pragma unroll 1
      for (int key = tile; key < tile + Traits::kKeys; key += 16) {
        float p[2][4];
        load_scores(p[0], key, lower);
        load_scores(p[1], key + 8, lower);
        exponentiate(p, maxima, sums);
        const Fragment a = pack_a<T>(p[0], p[1]);
#pragma unroll
        for (int n = 0; n < Traits::kWarpColumns / 16; ++n) {
          const Fragment b = load_b_transposed<kDim>(values, key, column + n * 16);
          mma<T>(output[2 * n], a, b.x[0], b.x[1]);
          mma<T>(output[2 * n + 1], a, b.x[2], b.x[3]);
        }
      }
    }
    sums = {quad_sum(sums.x), quad_sum(sums.y)};
  }

  /// Leaves what the rows have found in a chunk in the workspace.
  __device__ void leave(const FewWork& work, int chunk,
                        const float (&output)[Traits::kWarpColumns / 8][4], float2 maxima,
                        float2 sums) const {
    const AccumulatorPlace place;
    const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = place.row + h * 8;
      if (work.slab.row + row >= work.slab.rows) continue;
      const int64_t entry = entry_of(work, chunk, row);
      if (warp == 0 && place.column == 0) {
        params.state[entry] = h == 0 ? float2{maxima.x, sums.x} : float2{maxima.y, sums.y};
      }
      float* to = params.sums + entry * params.args.head_dim;
#pragma unroll
      for (int n = 0; n < Traits::kWarpColumns / 8; ++n) {
        const int column = warp * Traits::kWarpColumns + n * 8 + place.column;
        if (column < params.args.head_dim) {
          *reinterpret_cast<float2*>(to + column) = {output[n][2 * h], output[n][2 * h + 1]};
        }
      }
    }
  }

  /// Whether this block is the last of those that have chunks of these rows.
  __device__ bool is_last(const FewWork& work, int* told) const {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned* counter =
          params.counters + work.slot * params.args.num_kv_heads + work.slab.kv_head;
      const auto others = static_cast<unsigned>(work.blocks - 1);
      const bool last = atomicAdd(counter, 1u) == others;
      if (last) *counter = 0;  // as the next launch expects it
      *told = last ? 1 : 0;
    }
    __syncthreads();
    __threadfence();
    return *told != 0;
  }

  /// Merges all chunks of the rows, a pair of columns at a time.
  __device__ void merge(const FewWork& work) const {
    const int head_dim = params.args.head_dim;
    const int rows = min(Traits::kRows, work.slab.rows - work.slab.row);
    const int pairs = head_dim / 2;
    const int count = work.chunks.count();
    const int64_t step =
        static_cast<int64_t>(work.slab.rows / params.group()) * params.args.num_heads;
    for (int at = static_cast<int>(threadIdx.x); at < rows * pairs; at += kThreads) {
      const int row = at / pairs;
      const int column = at % pairs * 2;
      const int64_t entry = entry_of(work, work.chunks.first, row);
      const float2* state = params.state + entry;
      const float* sums = params.sums + entry * head_dim + column;
      ChunkMerge merge;
      float2 merged = {0, 0};
      constexpr int kAhead = 4;  // chunks whose numbers are asked for at once
      for (int first = 0; first < count; first += kAhead) {
        float2 states[kAhead];
        float2 found[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int64_t chunk = min(first + i, count - 1);
          states[i] = __ldcg(state + chunk * step);
          found[i] = __ldcg(reinterpret_cast<const float2*>(sums + chunk * step * head_dim));
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          if (first + i >= count) break;
          float2 factors;
          merge.add(states[i].x, states[i].y, factors);
          merged.x = merge_chunk(merged.x, found[i].x, factors);
          merged.y = merge_chunk(merged.y, found[i].y, factors);
        }
      }
      const float factor = inverse_or_zero(merge.sum);
      T* out = row_pointer(work, static_cast<T*>(params.args.out), params.args.out_row_stride, row);
      *reinterpret_cast<typename Element<T>::Pair*>(out + column) =
          Element<T>::pair(merged.x * factor, merged.y * factor);
    }
  }

  /// All chunks of `work`, whose first one is on its way: a group of copies of queries and keys,
  /// and one of values.
  __device__ void run(const FewWork& work, int* told) const {
    float merged[Traits::kWarpColumns / 8][4] = {};
    ChunkMerge above, below;
    float output[Traits::kWarpColumns / 8][4];
    float2 maxima, sums;
    for (int chunk = work.begin; chunk < work.end; ++chunk) {
      const bool more = chunk + 1 < work.end;
      cute::cp_async_wait<1>();
      __syncthreads();
      score(work, chunk);
      cute::cp_async_wait<0>();
      __syncthreads();
      if (more) copy_chunk(work, chunk + 1, true, 0, INT_MAX);
      cute::cp_async_fence();
      weigh(work, output, maxima, sums);
      __syncthreads();  // values and scores have been read
      if (more) copy_chunk(work, chunk + 1, false, 0, INT_MAX);
      cute::cp_async_fence();
      if (work.blocks > 1) {
        leave(work, chunk, output, maxima, sums);
        continue;
      }
      float2 factors_above, factors_below;
      above.add(maxima.x, sums.x, factors_above);
      below.add(maxima.y, sums.y, factors_below);
#pragma unroll
      for (int n = 0; n < Traits::kWarpColumns / 8; ++n) {
        merged[n][0] = merge_chunk(merged[n][0], output[n][0], factors_above);
        merged[n][1] = merge_chunk(merged[n][1], output[n][1], factors_above);
        merged[n][2] = merge_chunk(merged[n][2], output[n][2], factors_below);
        merged[n][3] = merge_chunk(merged[n][3], output[n][3], factors_below);
      }
    }
    if (work.blocks > 1) {
      if (is_last(work, told)) merge(work);
      return;
    }
    const AccumulatorPlace place;
    const float2 factors = {inverse_or_zero(above.sum), inverse_or_zero(below.sum)};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = place.row + h * 8;
      if (work.slab.row + row >= work.slab.rows) continue;
      const float factor = h == 0 ? factors.x : factors.y;
      T* out = row_pointer(work, static_cast<T*>(params.args.out), params.args.out_row_stride, row);
#pragma unroll
      for (int n = 0; n < Traits::kWarpColumns / 8; ++n) {
        const int column =
            static_cast<int>(threadIdx.x) / 32 * Traits::kWarpColumns + n * 8 + place.column;
        if (column < params.args.head_dim) {
          *reinterpret_cast<typename Element<T>::Pair*>(out + column) =
              Element<T>::pair(merged[n][2 * h] * factor, merged[n][2 * h + 1] * factor);
        }
      }
    }
  }
};

template <class T, int kDim>
__global__ void __launch_bounds__(FewTraits<kDim>::kThreads, FewTraits<kDim>::kBlocks)
    paged_attention_few_kernel(const __grid_constant__ PagedKernelParams params) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ int told;
  const FewAttention<T, kDim> attention(params, shared);
  const FewSchedule schedule(params);
  FewWork work;
  bool waited = false;
  for (int item = static_cast<int>(blockIdx.x);; item += static_cast<int>(gridDim.x)) {
    if (!schedule.find(item, work)) break;
    const bool any = work.begin < work.end;
    if (waited) __syncthreads();  // the work before has been read
    // The tokens of this step are cached by the kernel before, older ones were long before.
    const int old = waited ? 0 : work.slab.position;
#pragma unroll 1
    for (const bool after_wait : {false, true}) {
      if (after_wait) {
        if (!waited) {
          wait_for_previous_kernel();
          let_next_kernel_start();
          waited = true;
        }
        attention.copy_queries(work);
      }
#pragma unroll 1
      for (const bool of_keys : {true, false}) {
        // Most chunks have no tokens of this step.
        if (any && (!after_wait || (work.begin + 1) * kChunkKeys > old)) {
          attention.copy_chunk(work, work.begin, of_keys, after_wait ? old : 0,
                               after_wait ? INT_MAX : old);
        }
        if (after_wait) cute::cp_async_fence();
      }
    }
    attention.run(work, &told);
  }
  if (!waited) {
    wait_for_previous_kernel();
    let_next_kernel_start();
  }
}

}  // namespace packhorse::cuda
