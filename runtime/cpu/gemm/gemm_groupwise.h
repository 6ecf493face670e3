// Dense layers whose weights are quantised in groups of input features (WeightGroups): what GGUF,
// GPTQ and AWQ files hold, and language models in int8. Rows of x are quantised to 8 bits in blocks
// of 32 features, or to 16 bits in blocks of 64 for weights of 10 bits, so that products are summed
// as integers within a group, exactly, and in float32, in order, over groups
// (MultiplyGroupwise in gemm_kernels.h). Every number of rows goes through that one arithmetic.
#pragma once

#include <memory>

#include "cpu/gemm/gemm_shape.h"

namespace packhorse::cpu {

/// Makes a dense layer that takes x in blocks: Block::x, x_scales and x_sums are what
/// QuantizeBlocks writes.
std::unique_ptr<Gemm> make_groupwise_gemm(const DenseShape& shape);

}  // namespace packhorse::cpu
