// Split of the sum over k of a dense layer into parts.
//
// A product of one row takes the time of reading its weight, and then that of a chain of sums over
// k: tensor cores add 16 products to a sum at a time, and each such link waits about 24 cycles for
// the one before. In a step of generation the rows exist only when the layer before has ended, so
// the chain is a large part of the time. Layers whose products mostly have few rows
// (LinearWeight::skinny) therefore form up to five shorter chains side by side, whose results are
// added in ascending order: each by a warp for up to 16 rows (gemm/skinny/skinny.h), and mostly by
// a block of a cluster for up to 64, and for long sums up to about 500
// (gemm/splitk/splitk_cluster.h). Other kernels form the same parts one after the other, so that a
// row has the same bits whatever kernel computes it.
#pragma once

#include <cstdint>

#include "core/math.h"

namespace packhorse::cuda {

/// Elements of k that kernels copy together; each part is a multiple of it.
inline constexpr int64_t kSumUnit = 64;

/// The most parts of a sum.
inline constexpr int32_t kMaxSplitK = 5;

/// Returns the number of parts, of equal length, of a layer with few rows. It depends on the
/// weight's shape [n, k] and on the device alone: an SM gets up to eight warps, each of which has
/// one part of 16 of the SM's features.
inline int32_t split_k(int64_t n, int64_t k, int sm_count) {
  const int64_t features = ceil_div(n, sm_count);
  const int64_t warps = ceil_div(features, 16);
  if (k % kSumUnit != 0) return 1;
  for (const int32_t parts : {4, 5, 3, 2}) {
    if (warps * parts <= 8 && k % (kSumUnit * parts) == 0) return parts;
  }
  return 1;
}

}  // namespace packhorse::cuda
