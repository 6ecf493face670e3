// How the sum over k of a dense layer is cut into parts.
//
// A product of one row takes as long as its weight takes to be read, and then as long as the chain
// of sums over k: tensor cores add 16 products to a sum at a time, and each such link waits for the
// one before, some 24 cycles. For the rows of a step of generation, which only exist when the layer
// before has ended, that chain is a large part of the time. So layers whose products mostly have
// few rows (LinearWeight::few_rows) form up to four shorter chains side by side, a warp each, whose
// results are added in ascending order. Kernels for many rows go through the same parts one after
// the other, because a row has the same bits whatever it is computed with.
#pragma once

#include <algorithm>
#include <cstdint>

namespace packhorse::cuda {

/// Part p of the sum has the elements of k from begin(p) to begin(p + 1), each a multiple of kUnit;
/// the last one ends with k.
struct SumParts {
  /// Elements of k that stay together: two boxes, which a stage of the kernels for many rows has.
  static constexpr int32_t kUnit = 128;
  int32_t count;
  int32_t units;  // of all of k

  constexpr SumParts(int32_t count, int32_t k) : count(count), units((k + kUnit - 1) / kUnit) {}
  constexpr int32_t begin(int32_t part) const { return part * units / count * kUnit; }
};

/// The number of parts of a layer with few rows, which depends on the weight's shape [n, k] and on
/// the device alone: as many as give a multiprocessor up to eight warps of work, where each has 16
/// of the features that are this multiprocessor's.
inline int32_t sum_parts(int64_t n, int64_t k, int sm_count) {
  const int64_t features = (n + sm_count - 1) / sm_count;
  const int64_t warps = (features + 15) / 16;
  const int64_t most = warps <= 2 ? 4 : warps <= 4 ? 2 : 1;
  return static_cast<int32_t>(
      std::clamp<int64_t>((k + SumParts::kUnit - 1) / SumParts::kUnit, 1, most));
}

}  // namespace packhorse::cuda
