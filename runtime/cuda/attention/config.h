// Chooses the Hopper attention kernel that computes a batch. These are pure host functions, so that
// they can be tested without a GPU.
//
// The choice affects speed alone: all kernels of one head tile compute a row with the same bits.
// Narrow windows are the exception. They have a kernel of their own, with smaller key tiles, and
// whether a layer uses it depends on the layer and never on the batch.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "core/format.h"

namespace packhorse::cuda {

/// Division of the work between warpgroups, blocks and SMs. In every plan a warpgroup owns 64 query
/// rows.
enum class AttentionPlan : uint8_t {
  kSingleTile,  // one warpgroup per block, four blocks per SM; every sequence fits one key tile
  kManyBlocks,  // one warpgroup per block, three blocks per SM, any number of key tiles
  kWindow,      // like kManyBlocks with smaller key tiles, for windows of few keys
  kPingPong,  // two or three warpgroups share key tiles; one does softmax while another does wgmma
  kTerm,      // like kPingPong, with an additive term
};

struct AttentionConfig {
  int head_tile = 64;  // columns of a head on chip: head_dim rounded up, the rest zeros
  AttentionPlan plan = AttentionPlan::kPingPong;
  bool operator==(const AttentionConfig&) const = default;
};

inline constexpr std::array<int, 5> kAttentionHeadTiles = {32, 64, 96, 128, 256};

/// Returns the number of keys per tile. It sets the order in which the sums of a row are formed, so
/// it depends on the head tile and on whether the mask is a narrow window, and on nothing else.
constexpr int attention_kv_tile(int head_tile, bool narrow = false) {
  return head_tile == 256 || narrow ? 64 : 128;
}

/// Returns whether a window is so narrow that tiles of 64 rows and 64 keys skip many scores that
/// larger tiles would compute only to mask them. `left` and `right` are the window's limits; a
/// negative one means no limit.
constexpr bool is_narrow_window(int head_tile, int left, int right) {
  return head_tile <= 64 && left >= 0 && right >= 0 && left + right <= 256;
}

/// The largest max_distance of a bucketed term: the kernel keeps a table from distance to bucket in
/// shared memory.
inline constexpr int kAttentionMaxTermDistance = 1024;

/// Returns the smallest head tile that holds a head_dim of 8 to 256, and 0 for larger heads.
constexpr int attention_head_tile(int head_dim) {
  for (const int tile : kAttentionHeadTiles) {
    if (head_dim <= tile) return tile;
  }
  return 0;
}

/// Selects the kernel from the launch's bounds. The thresholds were measured on an H200
/// (docs/developer/notebook/cuda_kernels.md).
inline AttentionConfig select_attention(int head_dim, int num_heads, int64_t num_tokens_q,
                                        int64_t max_seqlen_k, bool has_term, int sm_count,
                                        bool narrow_window = false) {
  const int tile = attention_head_tile(head_dim);
  if (has_term) return {tile, AttentionPlan::kTerm};
  if (narrow_window) return {tile, AttentionPlan::kWindow};
  // With short sequences latency decides: small blocks, many to an SM, hide each other's latency.
  if (tile <= 64 && max_seqlen_k <= attention_kv_tile(tile)) {
    return {tile, AttentionPlan::kSingleTile};
  }
  // Smaller tiles win where all tiles of 64 rows fit on the SMs at once, and where heads of 32
  // columns are bound by exp2 rather than by wgmma. Elsewhere they lose, because they load the keys
  // three times as often. The number of sequences is not looked at: a captured graph knows only a
  // loose bound of it.
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
