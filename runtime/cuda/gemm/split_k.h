// Split of the sum over k of a dense layer into parts.
//
// A product of one row takes as long as its weight takes to be read, and then as long as the chain
// of sums over k: tensor cores add 16 products to a sum at a time, and each such link waits for the
// one before, some 24 cycles. For the rows of a step of generation, which only exist when the layer
// before has ended, that chain is a large part of the time. So layers whose products mostly have
// few rows (LinearWeight::skinny) form up to five shorter chains side by side, whose results are
// added in ascending order: a warp has each for up to 16 rows (gemm/skinny/skinny.h), and mostly a
// block of a cluster for up to 64 (gemm/splitk/splitk_cluster.h). Kernels for more rows go through
// the same parts one after the other, because a row has the same bits whatever it is computed with.
#pragma once

#include <cstdint>

#include "core/math.h"

namespace packhorse::cuda {

/// Elements of k that kernels copy together, and of which parts have a whole number.
inline constexpr int64_t kSumUnit = 64;

/// The most parts of a sum.
inline constexpr int32_t kMaxSplitK = 5;

/// The number of parts, of equal length, of a layer with few rows. It depends on the weight's shape
/// [n, k] and on the device alone: a multiprocessor gets up to eight warps of work, where each has
/// one part for 16 of the features that are this multiprocessor's.
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
