// Layout of weights that are quantised in groups of input features (WeightGroups).
//
// A packed weight is a sequence of stripes of 64 output features. A stripe holds one group of input
// features after another: 64 scales, 64 minima if there are any, and the values. Of 8 bits, 4
// neighbouring input features of each of the 64 columns follow one another; of 4 bits, a byte holds
// two values, those of 4 input features in its low halves and of the next 4 in its high ones. Input
// features are filled up to a multiple of 32 with values that the zeros of x meet. Weights of 10
// bits have a layout of their own (wide_groups.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/math.h"
#include "cpu/isa/gemm_kernels.h"
#include "cpu/threads/thread_pool.h"
#include "ops/args/common.h"

namespace packhorse::cpu {

/// The blocks in which a row of x is quantised, and the bytes of one: to 16 bits where `wide`
/// (WeightGroups::wide_inputs).
constexpr int64_t group_blocks(int64_t in_features, bool wide) {
  return ceil_div(in_features, wide ? kWideBlock : kGroupBlock);
}
constexpr int64_t block_bytes(bool wide) { return wide ? 2 * kWideBlock : kGroupBlock; }

/// Bytes from one stripe of a packed weight to the next.
int64_t groups_stripe_bytes(int64_t in_features, const WeightGroups& groups);
size_t packed_groups_bytes(int64_t in_features, int64_t out_features, const WeightGroups& groups);
/// Stripes are packed in parallel.
void pack_groupwise_weight(const GroupedWeight& weight, int64_t in_features, int64_t out_features,
                           const WeightGroups& groups, void* packed, ThreadPool& pool);
/// Quantises a float32 matrix [out_features, in_features] to 10 bits first (pack_wide_rows).
void pack_groupwise_weight(const float* weight, int64_t in_features, int64_t out_features,
                           void* packed, ThreadPool& pool);

/// Packs columns [first, first + count), of which `rows` has only these. `first` is a multiple of
/// kStripeColumns.
void pack_groupwise_rows(const GroupedWeight& rows, int64_t first, int64_t count,
                         int64_t in_features, const WeightGroups& groups, void* packed);
/// Quantises the columns to 10 bits first (pack_wide_rows).
void pack_groupwise_rows(const float* rows, int64_t first, int64_t count, int64_t in_features,
                         void* packed);

/// Writes scale * row `row` of a packed weight, [in_features] in `dtype`. Products of a value and
/// its group's scale are exact in float32.
void read_groupwise_row(const LinearWeight& weight, int64_t row, float scale, DType dtype,
                        void* out);

}  // namespace packhorse::cpu
