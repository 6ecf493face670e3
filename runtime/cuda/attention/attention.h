// The host interface of variable-length attention on CUDA. Ops has checked all shapes before it
// calls these functions.
//
// q, k, v and out share one 16-bit dtype; scores, softmax and accumulation are in float32. A query
// that sees no key gives zeros. The bits of an output row depend on its own sequence alone: never
// on the rest of the batch, on the launch's bounds or on how busy the chip is. Kernels read offsets
// and counts while kernels ahead of them in the stream may still run, so those must not write them
// (cuda/common/launch.cuh, rule 3).
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device/stream.h"
#include "ops/args/attention.h"

namespace packhorse::cuda {

/// Returns whether `launch_attention_sm90` can compute these arguments. It takes fp16 and bf16, a
/// head_dim that is a multiple of 8 up to 256, row strides that are multiples of 8 elements and
/// pointers aligned to 16 bytes (the Tensor Memory Accelerator, TMA, asks for both), a bucketed
/// term of at most 256 buckets and a max_distance of at most 1024, and no term of grids.
bool attention_sm90_supported(const AttentionArgs& args);

/// Most columns of a head for which there are Hopper kernels with e4m3 results: a multiple of 16,
/// with all terms but disentangled ones and those of grids.
inline constexpr int kMostFloat8HeadDim = 64;

/// The factor of results in e4m3, or 0 for results in the dtype of q.
inline float float8_factor(const AttentionArgs& args) {
  return args.out.dtype == DType::kFloat8 ? 1 / args.out_scale : 0;
}

/// Settings of a launch besides its arguments.
struct AttentionLaunch {
  int32_t* next_tile = nullptr;  // counter of tiles, for launch_attention_sm90
  /// Sequences of up to so many queries and keys are left alone.
  int32_t short_tokens = 0;
};

/// Launches attention on a device of compute capability 9.0 exactly. It allocates nothing, is
/// asynchronous on `stream` and may be captured into a graph. Blocks take their tiles first come,
/// first served, by the counter `next_tile`, which is zero before and after every launch, so that
/// one serves all launches of a stream; where it is null they take them in a fixed order: that is
/// slower and gives the same bits. Throws RuntimeError.
void launch_attention_sm90(const AttentionArgs& args, int32_t* next_tile,
                           const KernelStream& stream);

}  // namespace packhorse::cuda
