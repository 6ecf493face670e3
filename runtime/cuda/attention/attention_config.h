// Which Hopper attention kernel runs a batch: pure host functions, testable without a GPU. The
// choice is one of speed alone: a row's bits are the same in every kernel of a head tile. (Narrow
// windows have a kernel of their own, which a layer takes always or never.)
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "core/format.h"

namespace packhorse::cuda {

/// How a block works. A warpgroup owns 64 query rows.
enum class AttentionPlan : uint8_t {
  kSingleTile,  // one warpgroup a block, four blocks an SM, every sequence within one key tile
  kManyBlocks,  // one warpgroup a block, three blocks an SM, one key tile after the other
  kWindow,      // the same with smaller key tiles, for windows of few keys
  kPingPong,    // two or three warpgroups share keys; softmax of one beside wgmma of another
  kTerm,        // ping-pong with an additive term
};

struct AttentionConfig {
  int head_tile = 64;  // columns per head on chip; columns past head_dim are zeros
  AttentionPlan plan = AttentionPlan::kPingPong;
  bool operator==(const AttentionConfig&) const = default;
};

inline constexpr std::array<int, 5> kAttentionHeadTiles = {32, 64, 96, 128, 256};

/// Keys per tile. They set the order of a row's sums, so they depend on the head tile and on
/// whether the mask is a narrow window, nothing else.
constexpr int attention_kv_tile(int head_tile, bool narrow = false) {
  return head_tile == 256 || narrow ? 64 : 128;
}

/// Whether a window, of limits left and right (negative: none), has so few keys that tiles of 64
/// rows and 64 keys leave out many that larger ones would compute and mask.
constexpr bool is_narrow_window(int head_tile, int left, int right) {
  return head_tile <= 64 && left >= 0 && right >= 0 && left + right <= 256;
}

/// Bucketed terms go through a table of distances in shared memory.
inline constexpr int kAttentionMaxTermDistance = 1024;

/// Smallest head tile for a head_dim of 8 to 256.
constexpr int attention_head_tile(int head_dim) {
  for (const int tile : kAttentionHeadTiles) {
    if (head_dim <= tile) return tile;
  }
  return 0;
}

/// From the launch's bounds; measured on an H200 (docs/performance_cuda.md).
inline AttentionConfig select_attention(int head_dim, int num_heads, int64_t num_tokens_q,
                                        int max_seqlen_k, bool has_term, int sm_count,
                                        bool narrow_window = false) {
  const int tile = attention_head_tile(head_dim);
  if (has_term) return {tile, AttentionPlan::kTerm};
  if (narrow_window) return {tile, AttentionPlan::kWindow};
  // Short sequences are a matter of latency: small blocks, many on an SM, hide each other's.
  if (tile <= 64 && max_seqlen_k <= attention_kv_tile(tile)) {
    return {tile, AttentionPlan::kSingleTile};
  }
  // Where tiles of 64 rows fit the SMs at once, or where a head of 32 columns is bound by exp2
  // rather than by wgmma, smaller tiles win; else they load the keys three times as often. The
  // number of sequences is left out: a graph knows a loose bound of it.
  const int64_t blocks = num_tokens_q * num_heads / 64;
  if (tile <= 64 && blocks <= sm_count) return {tile, AttentionPlan::kManyBlocks};
  if (tile == 32 && max_seqlen_k <= 512) return {tile, AttentionPlan::kManyBlocks};
  return {tile, AttentionPlan::kPingPong};
}

inline std::string describe(const AttentionConfig& config) {
  constexpr std::array<const char*, 5> kNames = {"single-tile", "many-blocks", "window",
                                                 "ping-pong", "term"};
  return concat("head tile ", config.head_tile, ", ", kNames[static_cast<size_t>(config.plan)]);
}

}  // namespace packhorse::cuda
