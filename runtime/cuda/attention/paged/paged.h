// Attention of new tokens over the pages of a key-value cache on CUDA: raw pointers, sizes, a
// stream. Shapes are checked by Ops, not here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/args.h"

namespace packhorse::cuda {

/// AttentionArgs with pages, in the form that kernels take. H = query heads, Hkv = key/value heads,
/// d = head size. The numbers of tokens, sequences and keys are upper bounds where `counts` is not
/// null, so that one captured graph serves every step within them.
struct PagedAttentionParams {
  const void* q = nullptr;  // [T, H * d]
  void* out = nullptr;      // [T, H * d]
  int64_t q_row_stride = 0;
  int64_t out_row_stride = 0;
  void* keys = nullptr;    // [num_pages, Hkv, kPageTokens, d]
  void* values = nullptr;  // [num_pages, Hkv, kPageTokens, d]
  /// Factors of each token and head, [num_pages, Hkv, kPageTokens], where pages are in e4m3; null
  /// where they are in `dtype`.
  const float* key_scales = nullptr;
  const float* value_scales = nullptr;
  /// Keys and values of this step, [T, Hkv * d], which the launch writes to their pages; or null
  /// where they lie there already, as they do with pages in e4m3.
  const void* new_keys = nullptr;
  const void* new_values = nullptr;
  int64_t new_key_stride = 0;
  int64_t new_value_stride = 0;
  int64_t page_rows = 0;                // num_pages * Hkv * kPageTokens
  const int32_t* table = nullptr;       // [B, table_stride]
  const int32_t* kv_lens = nullptr;     // [B]
  const int32_t* cu_seqlens = nullptr;  // [B + 1] of the queries
  const int32_t* counts = nullptr;      // {T, B} or null
  int32_t table_stride = 0;
  int32_t num_tokens = 0;
  int32_t num_sequences = 0;
  int32_t num_single = 0;  // sequences at the front that have one query each, or fewer; not a bound
  int32_t max_seqlen = 0;  // queries of the longest sequence
  int32_t max_kv_len = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  float scale = 1;
  float soft_cap = 0;
  AttentionMask mask;
  const float* slopes = nullptr;  // [H] of ALiBi, or null
  DType dtype = DType::kFloat16;
  float* workspace = nullptr;
  size_t workspace_bytes = 0;
  unsigned* counters = nullptr;  // [kPagedCounters]: zeros before and after every launch
  int32_t sm_count = 0;
  size_t most_shared_bytes = SIZE_MAX;  // most shared memory of a block of the device
};

/// Slabs of rows times key/value heads up to which sequences are split among blocks.
inline constexpr int64_t kPagedCounters = 16384;

/// Raises the shared memory limits of the kernels that find room on the current device, whose
/// blocks may have so many bytes; once, before any launch.
void prepare_attention_pages(size_t most_shared_bytes);

/// Bytes of workspace for these bounds, and for every batch within them.
size_t attention_pages_workspace(int64_t num_tokens, int64_t max_kv_len, int64_t num_heads,
                                 int64_t head_dim);

/// Returns whether a launch writes new keys and values to their pages itself. If not, they must lie
/// there.
bool appends_to_pages(const PagedAttentionParams& params);

/// Allocates nothing; asynchronous on `stream`, may be captured. Without a workspace long sequences
/// are not split among blocks: slower, same bits. Throws RuntimeError.
void launch_attention_pages(const PagedAttentionParams& params, cudaStream_t stream);

}  // namespace packhorse::cuda
