#include "model/layers/stack_args.h"

#include <cmath>

#include "model/layers/cca.h"

namespace packhorse {
namespace {

// Adds the output of a block to the hidden state, or keeps it apart if it has a norm first or is
// scaled.
template <class Args>
void set_result(Args& args, const StackSpec& spec, const LayerBuffers& buffers, int64_t rows) {
  const TensorView hidden = buffers.hidden.first_rows(rows);
  const bool apart = spec.output_norms() || spec.residual_scales;
  if (!apart) args.residual = hidden;
  args.out = apart ? buffers.normed.first_rows(rows) : hidden;
}

// Sets the input of a block's first layer, which the caller may replace if it is not kFloat8.
template <class Args>
void set_input(Args& args, const LinearWeight& weight, const LayerBuffers& buffers, int64_t rows) {
  if (weight.dtype == DType::kFloat8) {
    args.x = buffers.quantized.values.first_rows(rows);
    args.x_scales.rows = buffers.quantized.scales;
  } else {
    args.x = buffers.hidden.first_rows(rows);
  }
}

}  // namespace

Float8Rows quantized_of(const LayerBuffers& buffers, int64_t rows) {
  return {buffers.quantized.values.first_rows(rows), buffers.quantized.scales};
}

LinearArgs projection_of(const LayerWeights& layer, const LayerBuffers& buffers, int64_t rows) {
  LinearArgs args;
  set_input(args, layer.attention.qkv, buffers, rows);
  args.weight = layer.attention.qkv;
  args.out = (buffers.latents ? buffers.latents : buffers.qkv).first_rows(rows);
  args.workspace = buffers.linear_workspace;
  return args;
}

CcaArgs compression_of(const AttentionSpec& spec, const LayerWeights& layer,
                       const LayerBuffers& buffers, const BatchView& batch, int64_t head_dim) {
  CcaArgs args = cca_of(spec, *layer.attention.convolutions, layer.attention.qkv, head_dim);
  args.latents = buffers.latents.first_rows(batch.num_tokens);
  args.batch = batch;
  args.out = buffers.qkv.first_rows(batch.num_tokens);
  args.workspace = buffers.cca_workspace_bytes;
  return args;
}

LinearArgs output_of(const StackSpec& spec, const LayerWeights& layer, const LayerBuffers& buffers,
                     int64_t rows) {
  LinearArgs args;
  args.x = buffers.context.first_rows(rows);
  args.x_scales.tensor = layer.attention.context_scale;
  args.weight = layer.attention.output;
  args.workspace = buffers.linear_workspace;
  set_result(args, spec, buffers, rows);
  return args;
}

FeedForwardArgs feed_forward_of(const StackSpec& spec, const LayerWeights& layer,
                                const LayerBuffers& buffers, int64_t rows) {
  FeedForwardArgs args;
  set_input(args, layer.feed_forward.up, buffers, rows);
  args.inner_scale = layer.feed_forward.inner_scale;
  args.up = layer.feed_forward.up;
  args.down = layer.feed_forward.down;
  args.activation = spec.feed_forward.activation;
  args.gated = spec.feed_forward.gated;
  args.workspace = buffers.feed_forward_workspace;
  set_result(args, spec, buffers, rows);
  return args;
}

FeedForwardUpArgs up_of(const FeedForwardArgs& block, const AdaptedBuffers& buffers) {
  FeedForwardUpArgs args;
  args.x = block.x;
  args.up = block.up;
  args.activation = block.activation;
  args.gated = block.gated;
  args.out = buffers.inner.first_rows(block.x.rows());
  args.sums = buffers.sums.first_rows(block.x.rows());
  args.row_count = block.row_count;
  args.workspace = buffers.linear_workspace;
  return args;
}

LinearArgs sums_of(const FeedForwardUpArgs& up) {
  LinearArgs args;
  args.x = up.x;
  args.weight = up.up;
  args.out = up.sums;
  args.row_count = up.row_count;
  args.workspace = up.workspace;
  return args;
}

LinearArgs down_of(const FeedForwardArgs& block, const AdaptedBuffers& buffers) {
  LinearArgs args;
  args.x = buffers.inner.first_rows(block.x.rows());
  args.weight = block.down;
  args.residual = block.residual;
  args.norm = block.norm;
  args.out = block.out;
  args.row_count = block.row_count;
  args.workspace = buffers.linear_workspace;
  return args;
}

LinearArgs convolution_of(const StackWeights& weights, const LayerBuffers& buffers, int64_t rows) {
  LinearArgs args;
  args.x = buffers.unfolded.first_rows(rows);
  args.weight = *weights.convolution;
  args.residual = buffers.hidden.first_rows(rows);
  args.out = args.residual;
  args.workspace = buffers.convolution_workspace;
  return args;
}

AttentionArgs attention_of(const AttentionSpec& spec, const StackWeights& weights,
                           const LayerBuffers& buffers, const BatchView& batch) {
  const int64_t query_columns = spec.num_heads * weights.head_dim;
  const int64_t kv_columns = spec.num_kv_heads * weights.head_dim;
  const TensorView qkv = buffers.qkv.first_rows(batch.num_tokens);
  AttentionArgs args;
  args.q = qkv.column_slice(0, query_columns);
  args.k = qkv.column_slice(query_columns, kv_columns);
  args.v = qkv.column_slice(query_columns + kv_columns, kv_columns);
  args.out = buffers.context.first_rows(batch.num_tokens);
  args.queries = batch;
  args.keys = batch;
  args.num_heads = static_cast<int32_t>(spec.num_heads);
  args.num_kv_heads = static_cast<int32_t>(spec.num_kv_heads);
  args.head_dim = static_cast<int32_t>(weights.head_dim);
  // Each disentangled term has as much weight as the product of contents.
  const int terms = 1 + (spec.score_term.content_to_position ? 1 : 0) +
                    (spec.score_term.position_to_content ? 1 : 0);
  args.scale = spec.scale.value_or(1.0f / std::sqrt(static_cast<float>(terms * spec.head_dim)));
  if (spec.rope) args.scale *= spec.rope->attention_factor * spec.rope->attention_factor;
  args.term = weights.score_term;
  args.soft_cap = spec.soft_cap;
  args.workspace = buffers.attention_workspace;
  return args;
}

}  // namespace packhorse
