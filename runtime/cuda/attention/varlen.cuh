// All arithmetic on cu_seqlens of variable-length attention: where a sequence lies, which keys a
// tile of its queries sees, and which tile a block works on next.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/math.h"
#include "ops/args/attention.h"

namespace packhorse::cuda {

/// The limit of a window without limit. It is longer than any sequence, and small enough that
/// position + limit does not overflow an int32.
constexpr int32_t kUnlimitedWindow = 1 << 29;

struct Sequence {
  int32_t q_begin, q_length, k_begin, k_length;
};

/// The query at position p sees the keys at positions [p - left, p + right] of its sequence.
struct KeyWindow {
  int32_t left, right;
};

/// Returns the window of a mask in the form that kernels use: no limit is kUnlimitedWindow, and a
/// causal mask is a window without keys to the right.
inline KeyWindow key_window(const AttentionMask& mask) {
  const auto side = [](int32_t limit) {
    return limit < 0 ? kUnlimitedWindow : std::min(limit, kUnlimitedWindow);
  };
  return {side(mask.window_left), mask.causal ? 0 : side(mask.window_right)};
}

/// The unit of work of a block: rows [row, row + tile rows) of one head of one sequence.
struct QueryTile {
  Sequence sequence;
  int32_t head;  // negative: there is no more work
  int32_t row;
};

/// The key tiles [begin, end), of `kv_tile` keys each, that at least one query of a query tile
/// sees. Tiles are counted from the start of the sequence, so that a row meets the same tiles
/// whatever surrounds its sequence in the batch.
struct KeyTiles {
  int32_t begin, end;

  __device__ KeyTiles(const QueryTile& tile, KeyWindow window, int rows, int kv_tile) {
    const Sequence& s = tile.sequence;
    const int32_t first = s.k_length - s.q_length + tile.row;
    const int32_t last = first + min(rows, s.q_length - tile.row) - 1;
    const int32_t end_key = min(s.k_length, last + window.right + 1);
    begin = max(0, first - window.left) / kv_tile;
    end = max(begin, end_key <= 0 ? 0 : ceil_div(end_key, kv_tile));
  }
  __device__ int32_t count() const { return end - begin; }
};

/// The batch as a kernel sees it.
struct VarlenBatch {
  const int32_t* cu_seqlens_q;
  const int32_t* cu_seqlens_k;
  const int32_t* counts;  // {T, B} in device memory, or null
  int32_t num_sequences;  // an upper bound; exact where `counts` is null
  int32_t num_heads;
  int32_t heads_in_group;  // heads whose tiles alternate; 1: one head after the other
  /// Sequences of up to so many queries and keys have no tiles: another kernel computes them.
  int32_t short_tokens = 0;

  __device__ Sequence sequence(int32_t index) const {
    const int32_t q = cu_seqlens_q[index], k = cu_seqlens_k[index];
    return {q, cu_seqlens_q[index + 1] - q, k, cu_seqlens_k[index + 1] - k};
  }

  /// Returns the actual number of sequences.
  __device__ int32_t size() const {
    return counts == nullptr ? num_sequences : min(num_sequences, counts[1]);
  }
  __device__ int32_t tiles_in(const Sequence& s, int tile_rows) const {
    if (s.q_length <= short_tokens && s.k_length <= short_tokens) return 0;
    return ceil_div(s.q_length, tile_rows) * num_heads;
  }
  __device__ int32_t tiles_in(int32_t index, int tile_rows) const {
    Sequence s{};
    s.q_length = cu_seqlens_q[index + 1] - cu_seqlens_q[index];
    if (s.q_length <= short_tokens) s.k_length = cu_seqlens_k[index + 1] - cu_seqlens_k[index];
    return tiles_in(s, tile_rows);
  }
};

/// The query tiles of the batch, in the order in which blocks take them. Every block builds the
/// list for itself in shared memory, so there is no metadata kernel and no metadata in global
/// memory.
///
/// With at most kEntries sequences the list has one entry per sequence, longest first
/// (build_by_warp keeps the batch's order where every tile has a block of its own, since order then
/// does not matter). With more sequences it has one entry per run of neighbouring sequences, in the
/// batch's order.
struct TileList {
  static constexpr int kEntries = 256;

  alignas(16) int32_t keys[kEntries];
  int32_t ends[kEntries];  // number of tiles of this entry and all before it
  int32_t order[kEntries];
  Sequence sequences[kEntries];
  int32_t num_sequences;
  int32_t sequences_per_entry;

  /// With at most this many sequences one warp builds the list (build_by_warp): that is faster,
  /// because it needs no barriers of the block.
  static constexpr int kDecodeSequences = 32;

  /// Builds the list of the first `count` sequences; called by one whole warp. `mine` is the
  /// sequence whose index is the lane's number.
  __device__ void build_by_warp(Sequence mine, int32_t count, const VarlenBatch& batch,
                                int tile_rows) {
    const int lane = threadIdx.x % 32;
    if (lane >= count) mine = {};
    const int32_t tiles = batch.tiles_in(mine, tile_rows);
    const int32_t total = __reduce_add_sync(~0u, tiles);
    int rank = lane;
    if (total > static_cast<int32_t>(gridDim.x)) {
      const int32_t key = mine.q_length > 0 ? mine.k_length : -1;
      rank = 0;
      for (int other = 0; other < 32; ++other) {
        const int32_t its = __shfl_sync(~0u, key, other);
        rank += its > key || (its == key && other < lane);
      }
    }
    sequences[lane] = mine;
    order[rank] = lane;
    ends[rank] = tiles;
    for (int i = 32 + lane; i < kEntries; i += 32) ends[i] = total;
    if (lane == 0) {
      num_sequences = count;
      sequences_per_entry = 1;
    }
    __syncwarp();
    int32_t end = ends[lane];
    for (int step = 1; step < 32; step *= 2) {
      const int32_t below = __shfl_up_sync(~0u, end, step);
      if (lane >= step) end += below;
    }
    ends[lane] = end;
    __syncwarp();
  }

  /// Builds the list; called by all `threads` threads of the block. Ends with a barrier of the
  /// block.
  __device__ void build(const VarlenBatch& batch, int tile_rows, int threads) {
    const int tid = threadIdx.x;
    int32_t n = batch.num_sequences;
    // The offsets are loaded together with the count, so that one wait covers both.
    Sequence mine{};
    if (tid < min(n, kEntries)) mine = batch.sequence(tid);
    if (batch.counts != nullptr) n = min(n, batch.counts[1]);
    const int32_t run = ceil_div(n, kEntries);
    if (tid == 0) {
      num_sequences = n;
      sequences_per_entry = run;
    }
    if (run <= 1) {
      const int padded = round_up(n, 4);
      for (int i = tid; i < kEntries; i += threads) {
        ends[i] = 0;
        if (i >= padded) continue;
        const Sequence s = i >= n ? Sequence{} : i == tid ? mine : batch.sequence(i);
        sequences[i] = s;
        keys[i] = s.q_length > 0 ? s.k_length : -1;
      }
      __syncthreads();
      // The place of a sequence is the number of longer ones. As many lanes as there are to spare
      // share the counting for one sequence.
      int lanes = 1;
      while (lanes < 32 && 2 * lanes * n <= threads) lanes *= 2;
      for (int first = 0; first < n; first += threads / lanes) {
        const int i = first + tid / lanes;
        int rank = 0;
        if (i < n) {
          const int32_t key = keys[i];
          for (int j = tid % lanes * 4; j < padded; j += 4 * lanes) {
            const int4 other = *reinterpret_cast<const int4*>(&keys[j]);
            rank += (other.x > key || (other.x == key && j < i));
            rank += (other.y > key || (other.y == key && j + 1 < i));
            rank += (other.z > key || (other.z == key && j + 2 < i));
            rank += (other.w > key || (other.w == key && j + 3 < i));
          }
        }
        for (int step = 1; step < lanes; step *= 2) rank += __shfl_xor_sync(~0u, rank, step);
        if (i < n && tid % lanes == 0) {
          order[rank] = i;
          ends[rank] = batch.tiles_in(sequences[i], tile_rows);
        }
      }
    } else {
      for (int i = tid; i < kEntries; i += threads) {
        int32_t tiles = 0;
        const int32_t last = min(n, (i + 1) * run);
        for (int32_t s = i * run; s < last; ++s) {
          tiles += batch.tiles_in(s, tile_rows);
        }
        ends[i] = tiles;
      }
    }
    __syncthreads();
    if (tid < 32) {
      constexpr int kPerLane = kEntries / 32;
      int32_t sums[kPerLane];
      int32_t sum = 0;
      for (int i = 0; i < kPerLane; ++i) sums[i] = sum += ends[tid * kPerLane + i];
      int32_t inclusive = sum;
      for (int step = 1; step < 32; step *= 2) {
        const int32_t below = __shfl_up_sync(~0u, inclusive, step);
        if (tid >= step) inclusive += below;
      }
      for (int i = 0; i < kPerLane; ++i) ends[tid * kPerLane + i] = sums[i] + inclusive - sum;
    }
    __syncthreads();
  }

  __device__ int32_t num_tiles() const { return ends[kEntries - 1]; }

  /// Returns tile `index`, which is less than num_tiles(). Called by a whole warp; all lanes get
  /// the same answer. With `descending` the last rows of a sequence come first.
  __device__ QueryTile find(int32_t index, const VarlenBatch& batch, int tile_rows,
                            bool descending) const {
    const int lane = threadIdx.x % 32;
    constexpr int kPerLane = kEntries / 32;
    const int group = __popc(__ballot_sync(~0u, ends[lane * kPerLane + kPerLane - 1] <= index));
    const int32_t end = ends[group * kPerLane + lane % kPerLane];
    const unsigned before = __ballot_sync(~0u, end <= index) & ((1u << kPerLane) - 1);
    const int entry = group * kPerLane + __popc(before);
    uint32_t rest = index - (entry > 0 ? ends[entry - 1] : 0);

    Sequence s;
    if (sequences_per_entry <= 1) {
      s = sequences[order[entry]];
    } else {
      int32_t base = entry * sequences_per_entry;
      for (;; base += 32) {
        const int32_t mine = base + lane;
        int32_t tiles = 0;
        if (mine < num_sequences) tiles = batch.tiles_in(mine, tile_rows);
        int32_t inclusive = tiles;
        for (int step = 1; step < 32; step *= 2) {
          const int32_t below = __shfl_up_sync(~0u, inclusive, step);
          if (lane >= step) inclusive += below;
        }
        const int found = __popc(__ballot_sync(~0u, inclusive <= static_cast<int32_t>(rest)));
        if (found < 32) {
          rest -= __shfl_sync(~0u, inclusive - tiles, found);
          s = batch.sequence(base + found);
          break;
        }
        rest -= __shfl_sync(~0u, inclusive, 31);
      }
    }
    // Heads alternate within groups. With a causal mask the costly last rows of all heads of a
    // group so come first, while the group's keys and values stay in the L2 cache.
    const uint32_t tiles = ceil_div(s.q_length, tile_rows);
    const uint32_t group_tiles = tiles * batch.heads_in_group;
    const uint32_t head_group = group_tiles == 1 ? rest : rest / group_tiles;
    rest -= head_group * group_tiles;
    const uint32_t first_head = head_group * batch.heads_in_group;
    const uint32_t heads = min(batch.heads_in_group, batch.num_heads - first_head);
    const uint32_t step = heads == 1 ? rest : rest / heads;
    return {s, static_cast<int32_t>(first_head + rest - step * heads),
            static_cast<int32_t>((descending ? tiles - 1 - step : step) * tile_rows)};
  }
};

}  // namespace packhorse::cuda
