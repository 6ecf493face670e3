// The largest sizes that each attention kernel takes. These are plain numbers, so that hosts
// without CUDA can include them too.
#pragma once

#include <cstdint>

#include "cuda/device/graph_bounds.h"

namespace packhorse::cuda {

/// The longest sequences, in keys, and the widest heads, in columns, that the two kernels of
/// ByteTransformer's paper take.
inline constexpr int kShortKeys = 384;
inline constexpr int kGroupedKeys = 1024;
inline constexpr int kGroupedHeadDim = 128;

/// The widest heads, in columns, that the kernels with a disentangled term take: the portable one,
/// and the one for Hopper.
inline constexpr int kDisentangledHeadDim = 128;
inline constexpr int kDisentangledSm90HeadDim = 64;

/// The widest heads, in columns, of sequences that single warps compute on Hopper.
inline constexpr int kWarpHeadDim = 128;

/// Tells whether the warp kernel computes a sequence, in a layer whose heads it takes. Only the
/// sequence's own lengths decide, because its bits must not depend on the rest of the batch.
constexpr bool computed_by_warps(int32_t q_length, int32_t k_length) {
  return q_length <= kWarpTokens && k_length <= kWarpTokens;
}

/// The longest sequences, in keys, that go to the short and to the grouped kernel; -1 means that
/// the kernel is not used. Sequences longer than both limits go to the online kernel. The kernels
/// sum in different orders, so the bits of a result depend on these limits.
///
/// By default every sequence goes to the online kernel, since it was the fastest at every length
/// measured (docs/developer/notebook/cuda_kernels.md) and needs no workspace.
struct PortableLimits {
  int32_t short_keys = -1;    // for whole score rows on chip; at most kShortKeys
  int32_t grouped_keys = -1;  // for grouped GEMMs; at most kGroupedKeys
};

}  // namespace packhorse::cuda
