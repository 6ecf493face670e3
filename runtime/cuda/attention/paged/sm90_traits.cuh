// Parts of the Hopper kernel of attention over pages (attention/paged/sm90_kernel.cuh): its
// arguments, its sizes, its shared memory, and the mapping from items of work to slabs of rows.
#pragma once

#include "core/math.h"
#include "cuda/attention/disentangled/sm90_products.cuh"
#include "cuda/attention/paged/decode_tiles.cuh"
#include "cuda/attention/sm90/traits.cuh"

namespace packhorse::cuda {

/// Rows of a block, 64 for each consumer warpgroup: as many as registers allow, since all of them
/// share the keys and values that the block reads.
template <int kDim>
inline constexpr int kPagesSm90Rows = kDim <= 64 ? 192 : 128;

struct PagesSm90Params : PagedKernelParams {
  /// The queries [tokens, H, d]; a box is 64 columns of the heads of a group and the tokens of a
  /// slab.
  CUtensorMap query_map;
  /// The keys' pages as a matrix [pages * Hkv * kPageTokens, d]; a box is 64 columns of a page.
  CUtensorMap key_map;
  /// The values' pages (page_values_map); a box is 64 columns of a page.
  CUtensorMap value_map;
  int slab_tokens = 0;  // tokens of a slab, each with all heads of a group
  int slots = 0;        // slots for every slab of one key/value head
};

/// kRare: scores may have a cap or a term (has_rare_scores), whose many instructions the other
/// kernel does without.
template <class T_, int kDim_, bool kRare_>
struct PagesSm90Traits {
  using T = T_;
  static constexpr int kDim = kDim_;
  static constexpr bool kRare = kRare_;
  static constexpr int kRows = kPagesSm90Rows<kDim>;
  static constexpr int kConsumers = kRows / 64;
  static constexpr int kKeys = kTileKeys<kDim>;
  static constexpr int kTile = kKeys * kDim;
  static constexpr int kBoxes = kDim / 64;
  static constexpr int kStages = 4;  // stages of keys, and as many of values
  static constexpr int kQueryStages = 2;
  static_assert(kKeys == kPageTokens, "a copy brings a tile from one page");

  // The producer has a whole warpgroup, so that its registers can go to the consumers.
  static constexpr int kThreads = 128 * kConsumers + 128;
  static constexpr int kProducerRegisters = kConsumers == 2 ? 24 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 240 : 160;

  /// Tiles in the layout of TMA's 128-byte swizzle: one panel of 64 columns after the other
  /// (tile_place).
  struct Shared {
    alignas(1024) T queries[kQueryStages][kRows * kDim];  // later the rows of the output
    alignas(1024) T keys[kStages][kTile];
    alignas(1024) T values[kStages][kTile];
    PagedSlab slabs[kQueryStages];  // slabs of the queries; one without rows ends the work
    alignas(8) uint64_t queries_full[kQueryStages], queries_empty[kQueryStages];
    uint64_t keys_full[kStages], keys_empty[kStages];
    uint64_t values_full[kStages], values_empty[kStages];
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);
};

/// Coordinates, in a map of the values' pages, at which a box holds the first `valid` tokens of a
/// page and zeros after them: rows past a sequence's end may hold NaN, and 0 x NaN would be NaN.
///
/// A page's rows have two coordinates, x and y, which both have the stride of a row, and x has the
/// extent kPageTokens. A box begins at x = kPageTokens - valid and y = valid. These always add up
/// to kPageTokens rows, so the map begins kPageTokens rows ahead of the pages; and x reaches its
/// extent at the end of the valid rows.
struct PageValues {
  static constexpr int kRowExtent = static_cast<int>(kPageTokens);        // extent of x
  static constexpr int kShiftExtent = static_cast<int>(kPageTokens) + 1;  // extent of y
  int x, y;
  __device__ explicit PageValues(int valid) : x(kRowExtent - valid), y(valid) {}
};

/// Tiles of keys [begin, end) that any of the rows first to last of a slab sees.
struct SlabTiles {
  int begin, end;
  __device__ SlabTiles(const PagedKernelParams& params, const PagedSlab& slab, int first, int last,
                       int keys) {
    const int first_position = slab.position + params.token_of(first);
    const int last_position = slab.position + params.token_of(last);
    const int end_key = min(slab.kv_length, last_position + params.window.right + 1);
    begin = max(0, first_position - params.window.left) / keys;
    end = max(begin, end_key <= 0 ? 0 : ceil_div(end_key, keys));
  }
};

/// Items of work: for each key/value head the slots of slabs, some of which are empty. Sequence b's
/// slabs begin at slot cu_seqlens[b] / slab_tokens + b.
struct SlabItems {
  const PagesSm90Params& params;

  __device__ int count() const { return params.slots * params.args.num_kv_heads; }

  /// Returns the row after a slab's last.
  __device__ int row_end(const PagedSlab& slab) const {
    return min(slab.rows, slab.row + params.slab_tokens * params.group);
  }

  /// Finds the slab of an item; returns false where there is none. Called by whole warps.
  __device__ bool find(int item, PagedSlab& slab) const {
    const AttentionArgs& args = params.args;
    const auto first_slot = [&](int b) {
      return args.queries.cu_seqlens[b] / params.slab_tokens + b;
    };
    const int sequences = params.sequences();
    if (sequences == 0) return false;
    // Slots are taken in descending order: rows near a sequence's end see the most keys, and a long
    // slab should not start last.
    const int slot = params.slots - 1 - item / args.num_kv_heads;
    slab.sequence = warp_search(sequences, slot, first_slot);
    slab.q_begin = args.queries.cu_seqlens[slab.sequence];
    const int q_length = args.queries.cu_seqlens[slab.sequence + 1] - slab.q_begin;
    slab.rows = q_length * params.group;
    slab.row = (slot - first_slot(slab.sequence)) * params.slab_tokens * params.group;
    slab.kv_length = args.pages.kv_lens[slab.sequence];
    slab.position = slab.kv_length - q_length;
    slab.kv_head = item % args.num_kv_heads;
    return slab.row >= 0 && slab.row < slab.rows;
  }
};

}  // namespace packhorse::cuda
