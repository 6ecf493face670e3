// A cache of the keys and values of past tokens, in pages.
//
// A page holds kPageTokens tokens of one sequence in one layer. Token j of sequence b lies in row
// j % kPageTokens of page table[b][j / kPageTokens]. So a sequence can grow page by page wherever
// there is room, and sequences with a common beginning can share pages.
#pragma once

#include <cstdint>

#include "ops/args/common.h"

namespace packhorse {

/// The number of tokens in a page. It is the size of a key tile in the attention kernels, so that a
/// tile is one contiguous block of memory for each head.
inline constexpr int64_t kPageTokens = 64;

/// The cache of one layer, and where each sequence of the batch lies in it. A null `table` means
/// that there is no cache.
struct PagedKvCache {
  TensorView keys;    // [num_pages * num_kv_heads * kPageTokens, head_dim]: page, head, token
  TensorView values;  // in the shape of keys
  /// Factors of each token's head in keys and values that are kFloat8, as float32 [num_pages *
  /// num_kv_heads, kPageTokens]; else empty. A scale is made when its token is
  /// appended, from the largest magnitude among the head's elements, and never changes.
  TensorView key_scales = {};
  TensorView value_scales = {};
  const int32_t* table = nullptr;    // [B, table_stride] page numbers, in device memory
  int64_t table_stride = 0;          // most pages that a sequence may have
  const int32_t* kv_lens = nullptr;  // [B] number of keys of each sequence, this step's included
  int64_t max_kv_len = 0;            // upper bound of kv_lens, in host memory
  /// Sequences at the batch's front that have one new token or fewer: a hint, which changes no
  /// result. It is 0 where the batch has its counts in device memory.
  int64_t num_single = 0;
  explicit operator bool() const { return keys.rank > 0; }
};

/// Writes the keys and values of the batch's tokens to their pages: those of token i of sequence b
/// to position kv_lens[b] - q_len + i. They are rounded to the dtype of the pages; in pages of
/// kFloat8 each head of a token gets its scales (float8.h's quantize_float8; a head with a number
/// that is not finite has a NaN for its scale). Attention reads the tokens of this step from the
/// pages, too, so their results do not depend on the step in which a token came.
struct AppendKvCacheArgs {
  TensorView k;  // [T, num_kv_heads * head_dim]; rows may be strided (a slice of fused QKV)
  TensorView v;  // [T, num_kv_heads * head_dim]; rows may be strided
  PagedKvCache pages;
  BatchView batch;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;  // as stored
};

}  // namespace packhorse
