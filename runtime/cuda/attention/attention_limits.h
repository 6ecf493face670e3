// What each attention kernel takes at most. Plain numbers, for hosts without CUDA too.
#pragma once

#include <cstdint>

namespace packhorse::cuda {

/// The longest sequences, in keys, and the widest heads that the two kernels of ByteTransformer's
/// paper take.
inline constexpr int kShortKeys = 384;
inline constexpr int kGroupedKeys = 1024;
inline constexpr int kGroupedHeadDim = 128;

/// The widest heads of the kernels with a disentangled term: any, and Hopper's.
inline constexpr int kDisentangledHeadDim = 128;
inline constexpr int kDisentangledSm90HeadDim = 64;

/// The longest sequences (in keys) of the two kernels beside the general one; -1: the kernel is not
/// used. Sequences longer than both limits take the general kernel. The bits of a result depend on
/// these limits.
///
/// The general kernel alone is the default, since it was the fastest at every length measured
/// (docs/performance_cuda_kernels.md), and it needs no workspace.
struct PortableLimits {
  int32_t short_keys = -1;    // whole score rows on chip; at most kShortKeys
  int32_t grouped_keys = -1;  // grouped GEMMs, scores in the workspace; at most kGroupedKeys
};

}  // namespace packhorse::cuda
