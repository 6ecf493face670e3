// Keys and values of past tokens, in pages.
//
// A page holds kPageTokens tokens of one sequence, of one layer. Token j of sequence b lies in row
// j % kPageTokens of page table[b][j / kPageTokens], so that a sequence may grow page by page
// wherever there is room, and sequences with a common beginning may share pages.
#pragma once

#include <cstdint>

#include "packhorse/types.h"

namespace packhorse {

/// Tokens of one page: the key tile of the attention kernels, so that a tile is one contiguous
/// block of memory for each head.
inline constexpr int64_t kPageTokens = 64;

/// Keys of one chunk: attention over pages starts anew at every multiple of this position and
/// merges chunks in their order, so that kernels which split a long sequence give the same bits as
/// those which walk through it. A constant, so that nothing of a batch can change the arithmetic.
inline constexpr int64_t kChunkTokens = 512;
static_assert(kChunkTokens % kPageTokens == 0);

/// The cache of one layer, and where each sequence of the batch lies in it. Without pages, an
/// argument of this type says that there is no cache.
struct KvPages {
  TensorView keys;    // [num_pages * num_kv_heads * kPageTokens, head_dim]: page, head, token
  TensorView values;  // likewise
  const int32_t* table = nullptr;    // [B, table_stride] numbers of pages, in the device's memory
  int64_t table_stride = 0;          // pages that the longest sequence may have
  const int32_t* kv_lens = nullptr;  // [B] keys of each sequence, those of this step included
  int64_t max_kv_len = 0;            // host bound of kv_lens
  explicit operator bool() const { return table != nullptr; }
};

}  // namespace packhorse
