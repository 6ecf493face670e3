// Layout of weights of 10 bits (WeightGroups): what a language model in int8 makes of floats.
//
// A packed weight is a sequence of stripes of 64 output features. A stripe holds one group of 64
// input features after another: 64 scales, bfloat16; the upper 8 bits, of 4 neighbouring input
// features of each of the 64 columns after the other, as in weights of 8 bits; and the lower 2, a
// word for each column and 16 features. A value is signed. Bits 4 s + 2 p of a word's lower half
// belong to feature 4 s + p of the 16, those of its upper half to feature 4 s + 2 + p, so that a
// shift puts those of two features where their sums of products want them
// (gemm_kernel_groupwise_tiles.inc).
#pragma once

#include <cstddef>
#include <cstdint>

namespace packhorse::cpu {

/// Bytes from one stripe of a packed weight to the next.
int64_t wide_stripe_bytes(int64_t in_features);

/// Quantises and packs columns [first, first + count), of which `rows`, [count, in_features], has
/// only these. `first` is a multiple of kStripeColumns. A value of a group is scale * q, where q
/// from -511 to 511 is rounded to nearest, ties to even, and scale is the largest magnitude / 511,
/// rounded up to bfloat16.
void pack_wide_rows(const float* rows, int64_t first, int64_t count, int64_t in_features,
                    void* packed);

/// values = those of row `row` of a packed weight from input feature `first`, a multiple of
/// kWideBlock, to the end of the group or of the row, exactly. Returns how many there are.
int64_t read_wide_group(const void* packed, int64_t row, int64_t in_features, int64_t first,
                        float* values);

}  // namespace packhorse::cpu
