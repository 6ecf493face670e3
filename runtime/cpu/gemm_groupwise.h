// Dense layers whose weights are quantised in groups of input features (WeightGroups): what GGUF,
// GPTQ and AWQ files hold. Rows of x are quantised to int8 in blocks of 32 features, so that
// products are summed as integers within a group, exactly, and in float32, in order, over groups
// (MultiplyGroupwise in kernels.h). Every number of rows goes through that one arithmetic.
//
// A packed weight is a sequence of stripes of 64 output features. A stripe holds one group of input
// features after another: 64 scales, 64 minima if there are any, and the values. Of 8 bits, 4
// neighbouring input features of each of the 64 columns follow one another; of 4 bits, a byte holds
// two values, those of 4 input features in its low halves and of the next 4 in its high ones. Input
// features are filled up to a multiple of 32 with values that the zeros of x meet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/math.h"
#include "cpu/gemm_shape.h"
#include "cpu/kernels.h"
#include "cpu/thread_pool.h"
#include "ops/args/common.h"

namespace packhorse::cpu {

/// The blocks in which a row of x is quantised.
constexpr int64_t group_blocks(int64_t in_features) { return ceil_div(in_features, kGroupBlock); }

size_t packed_groups_bytes(int64_t in_features, int64_t out_features, const WeightGroups& groups);
/// Stripes are packed in parallel.
void pack_groupwise_weight(const GroupedWeight& weight, int64_t in_features, int64_t out_features,
                           const WeightGroups& groups, void* packed, ThreadPool& pool);

/// Writes scale * row `row` of a packed weight, [in_features] in `dtype`. Products of a value and
/// its group's scale are exact in float32.
void read_groupwise_row(const LinearWeight& weight, int64_t row, float scale, DType dtype,
                        void* out);

/// Makes a dense layer that takes x in blocks: Block::x, x_scales and x_sums are what
/// QuantizeBlocks writes.
std::unique_ptr<Gemm> make_groupwise_gemm(const DenseShape& shape);

}  // namespace packhorse::cpu
