// The host interface of variable-length attention on CUDA. Functions take raw pointers, sizes and a
// stream; Ops has checked all shapes before it calls them.
//
// T = packed tokens, B = sequences, H = query heads, Hkv = key/value heads, d = head size. Tq and
// Tk are the packed tokens of queries and of keys.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/args.h"

namespace packhorse::cuda {

/// The arguments of one attention:
///
/// out[t, h] = softmax over the visible keys j of (scale * q[t, h].k[j, h'] + term) times v[j, h'],
/// where h' = h / (H / Hkv). A query that sees no key gives zeros.
///
/// q, k, v and out share one 16-bit dtype; scores, softmax and accumulation are in float32. The
/// bits of an output row depend on its own sequence alone: never on the rest of the batch, on the
/// launch's bounds or on how busy the chip is.
struct AttentionParams {
  const void* q = nullptr;   // [Tq, H * d]
  const void* k = nullptr;   // [Tk, Hkv * d]
  const void* v = nullptr;   // [Tk, Hkv * d]
  void* out = nullptr;       // [Tq, H * d]
  int64_t q_row_stride = 0;  // in elements, between the starts of rows
  int64_t k_row_stride = 0;
  int64_t v_row_stride = 0;
  int64_t out_row_stride = 0;
  // A kernel reads offsets and counts while kernels ahead of it in the stream may still run, so
  // those kernels must not write them (cuda/launch.cuh, rule 3).
  const int32_t* cu_seqlens_q = nullptr;  // [num_sequences + 1], device
  const int32_t* cu_seqlens_k = nullptr;  // [num_sequences + 1], device
  /// Null, or {T, B} in device memory, where B <= num_sequences is the actual number of sequences.
  /// The host's numbers are then only bounds. Because a captured graph fixes nothing but pointers
  /// and bounds, it can be replayed for another batch.
  const int32_t* counts = nullptr;
  int32_t num_sequences = 0;  // this and the numbers below are bounds; exact where `counts` is null
  int32_t num_tokens_q = 0;
  int32_t num_tokens_k = 0;
  int32_t max_seqlen_q = 0;
  int32_t max_seqlen_k = 0;
  int32_t min_seqlen_q = 0;  // least queries of a sequence that has any; 0: unknown
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
  /// Sequences of up to so many queries and keys are left alone by the Hopper kernels of tiles.
  int32_t short_tokens = 0;
  /// Not 0: `out` is e4m3, the result times this factor, limited to its range. Hopper kernels do so
  /// for heads of up to kMostFloat8HeadDim columns.
  float out_factor = 0;
};

/// Returns whether `launch_attention_sm90` can compute these arguments. It takes fp16 and bf16, a
/// head_dim that is a multiple of 8 up to 256, row strides that are multiples of 8 elements and
/// pointers aligned to 16 bytes (the Tensor Memory Accelerator, TMA, asks for both), and a bucketed
/// term of at most 256 buckets and a max_distance of at most 1024.
bool attention_sm90_supported(const AttentionParams& params);

/// Most columns of a head for which there are Hopper kernels with e4m3 results: a multiple of 16,
/// with all terms but disentangled ones.
inline constexpr int kMostFloat8HeadDim = 64;

/// Returns how many bytes of workspace a launch needs. The workspace must be zero before the first
/// launch that uses it, and every launch leaves it zero. One allocation that was cleared once
/// therefore serves all launches of a stream.
size_t attention_sm90_workspace(const AttentionParams& params);

/// Launches attention on a device of compute capability 9.0 exactly. It allocates nothing, is
/// asynchronous on `stream` and may be captured into a graph. Without a workspace, blocks take
/// their tiles in a fixed order instead of first come, first served: that is slower and gives the
/// same bits. Throws RuntimeError.
void launch_attention_sm90(const AttentionParams& params, cudaStream_t stream);

}  // namespace packhorse::cuda
