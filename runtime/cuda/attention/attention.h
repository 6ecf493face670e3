// Variable-length attention on CUDA: raw pointers, sizes, a stream. Shapes are checked by Ops, not
// here. T = packed tokens, B = sequences, H = query heads, Hkv = key/value heads, d = head size.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/args.h"

namespace packhorse::cuda {

/// out[t, h] = softmax over the visible keys j of (scale * q[t, h].k[j, h'] + term) times v[j, h'],
/// where h' = h / (H / Hkv). A query that sees no key gives zeros.
///
/// 16-bit q, k, v, out of one dtype; scores, softmax and accumulation in float32. A row's bits
/// depend on its own sequence alone: never on the batch, on the launch's bounds or on the chip's
/// load.
struct AttentionParams {
  const void* q = nullptr;   // [Tq, H * d]
  const void* k = nullptr;   // [Tk, Hkv * d]
  const void* v = nullptr;   // [Tk, Hkv * d]
  void* out = nullptr;       // [Tq, H * d]
  int64_t q_row_stride = 0;  // elements between rows
  int64_t k_row_stride = 0;
  int64_t v_row_stride = 0;
  int64_t out_row_stride = 0;
  // Offsets and counts are read while kernels ahead may still run: those must not write them
  // (cuda/launch.cuh, rule 3).
  const int32_t* cu_seqlens_q = nullptr;  // [num_sequences + 1], device
  const int32_t* cu_seqlens_k = nullptr;  // [num_sequences + 1], device
  /// Null, or {T, B} in device memory: B, at most num_sequences, is then the real number of
  /// sequences. Bounds and pointers are all that a captured graph fixes.
  const int32_t* counts = nullptr;
  int32_t num_sequences = 0;  // the numbers here are bounds; exact where `counts` is null
  int32_t num_tokens_q = 0;
  int32_t num_tokens_k = 0;
  int32_t max_seqlen_q = 0;
  int32_t max_seqlen_k = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_heads
  int32_t head_dim = 0;
  float scale = 1.0f;
  AttentionMask mask;
  ScoreTerm term;
  DType dtype = DType::kFloat16;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  int32_t sm_count = 0;
};

/// Whether `launch_attention_sm90` takes these arguments: fp16 or bf16, head_dim a multiple of 8 up
/// to 256, row strides multiples of 8 elements and pointers of 16 bytes (the copy engine's rules);
/// a bucketed term of at most 256 buckets and a max_distance of at most 1024.
bool attention_sm90_supported(const AttentionParams& params);

/// Bytes of workspace. It must be zero before the first launch that uses it; every launch leaves it
/// zero, so that one allocation, cleared once, serves all launches of a stream.
size_t attention_sm90_workspace(const AttentionParams& params);

/// Allocates nothing; asynchronous on `stream`, may be captured. Without a workspace the work is
/// dealt out in a fixed order instead of first come, first served: slower, same bits. Throws
/// RuntimeError. Needs a device of compute capability 9.0 exactly.
void launch_attention_sm90(const AttentionParams& params, cudaStream_t stream);

}  // namespace packhorse::cuda
