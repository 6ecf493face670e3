// The arguments of the operators of a block for a batch of the given size. Both the code that plans
// scratch and the code that runs the operators start from these. The caller fills in norms,
// `row_count`, and what only some layers have.
#pragma once

#include <cstdint>

#include "model/batch.h"
#include "model/layers/stack_buffers.h"
#include "model/layers/stack_weights.h"
#include "model/spec/spec.h"
#include "ops/args.h"
#include "ops/args/cca.h"

namespace packhorse {

/// Where norms put the first `rows` rows for layers that are kFloat8.
Float8Rows quantized_of(const LayerBuffers& buffers, int64_t rows);
LinearArgs projection_of(const LayerWeights& layer, const LayerBuffers& buffers, int64_t rows);
CcaArgs compression_of(const AttentionSpec& spec, const LayerWeights& layer,
                       const LayerBuffers& buffers, const BatchView& batch, int64_t head_dim);
LinearArgs output_of(const StackSpec& spec, const LayerWeights& layer, const LayerBuffers& buffers,
                     int64_t rows);
FeedForwardArgs feed_forward_of(const StackSpec& spec, const LayerWeights& layer,
                                const LayerBuffers& buffers, int64_t rows);

/// The two dense layers of a feed-forward block as operators of their own, which batches with
/// adapters take. They give the bits of the one operator.
FeedForwardUpArgs up_of(const FeedForwardArgs& block, const AdaptedBuffers& buffers);
LinearArgs sums_of(const FeedForwardUpArgs& up);
LinearArgs down_of(const FeedForwardArgs& block, const AdaptedBuffers& buffers);

LinearArgs convolution_of(const StackWeights& weights, const LayerBuffers& buffers, int64_t rows);
AttentionArgs attention_of(const AttentionSpec& spec, const StackWeights& weights,
                           const LayerBuffers& buffers, const BatchView& batch);

}  // namespace packhorse
