#include "model/layers/stack_buffers.h"

#include <algorithm>

#include "model/layers/stack_args.h"

namespace packhorse {
namespace {

// The most bytes that any layer needs. All have the same shapes, but not all of their weights need
// have the same form.
template <class Bytes>
size_t most_bytes(const StackWeights& weights, Bytes bytes_of) {
  size_t most = 0;
  for (const LayerWeights& layer : weights.layers) most = std::max(most, bytes_of(layer));
  return most;
}

}  // namespace

LayerBuffers take_layer_buffers(const Spec& spec, const StackWeights& weights,
                                const Capacity& capacity, DType dtype, const Ops& ops,
                                Arena& arena) {
  const int64_t tokens = capacity.max_tokens;
  const AttentionSpec& attention = spec.stack.attention;
  LayerBuffers buffers;
  buffers.hidden = arena.take_matrix("hidden", tokens, weights.width, dtype);
  if (spec.stack.pre_norm()) {
    buffers.normed = arena.take_matrix("normed", tokens, weights.width, dtype);
  }
  if (weights.float8()) {
    buffers.quantized.values =
        arena.take_matrix("quantized", tokens, weights.width, DType::kFloat8);
    buffers.quantized.scales =
        arena.take_array<float>("quantized_scales", static_cast<size_t>(tokens));
  }
  const auto take_rotation = [&](const char* name) {
    return arena.take_matrix(name, tokens, ops.rotation_columns(attention.rope->dims),
                             DType::kFloat32);
  };
  if (const AdapterCapacity& adapters = capacity.adapters; adapters.max_adapters > 0) {
    constexpr int64_t kMostParts = 3;  // queries, keys and values
    buffers.adapted.workspace = arena.take_array<float>(
        "adapted_ranks", static_cast<size_t>(tokens * kMostParts * adapters.max_rank));
  }
  if (!weights.layers.empty() && weights.layers.front().moe) {
    take_moe_state(*weights.layers.front().moe, tokens, dtype, arena, buffers.moe);
  }
  if (attention.rope) buffers.rotation = take_rotation("rotation");
  if (attention.has_local_theta()) buffers.local_rotation = take_rotation("local_rotation");
  if (weights.convolution) {
    buffers.unfolded = arena.take_matrix("unfold", tokens, weights.convolution->in_features, dtype);
    buffers.convolution_workspace = arena.take(
        "convolution_workspace", ops.linear_workspace(convolution_of(weights, buffers, tokens)));
  }
  return buffers;
}

void take_block_buffers(const Spec& spec, const StackWeights& weights, const Capacity& capacity,
                        const Ops& ops, Arena& arena, LayerBuffers& buffers) {
  if (weights.layers.empty()) return;
  const LayerWeights& layer = weights.layers.front();  // all layers have the same shapes
  const int64_t tokens = capacity.max_tokens;
  const DType dtype = buffers.hidden.dtype;
  {
    const Arena::Scope attention_block(arena);
    buffers.qkv = arena.take_matrix("qkv", tokens, layer.attention.qkv.out_features, dtype);
    if (layer.attention.convolutions) {
      buffers.latents =
          arena.take_matrix("latents", tokens, layer.attention.qkv.out_features, dtype);
    }
    const LinearWeight& output = layer.attention.output;
    const bool float8 = output.dtype == DType::kFloat8;
    buffers.context =
        arena.take_matrix("context", tokens, output.in_features, float8 ? DType::kFloat8 : dtype);
    BatchView batch;
    batch.num_tokens = tokens;
    batch.num_sequences = capacity.max_sequences;
    batch.max_seqlen = std::min(tokens, spec.max_seqlen);
    if (layer.attention.convolutions) {
      buffers.cca_workspace_bytes =
          arena.take("cca_workspace_bytes",
                     ops.cca_workspace(compression_of(spec.stack.attention, layer, buffers, batch,
                                                      weights.head_dim)));
    }
    AttentionArgs attention = attention_of(spec.stack.attention, weights, buffers, batch);
    size_t attention_bytes = ops.attention_workspace(attention);
    if (capacity.max_kv_len > 0) {  // instead of keys of the batch itself
      attention.pages.keys = TensorView(nullptr, dtype, 0, attention.head_dim);
      attention.pages.values = attention.pages.keys;
      attention.pages.max_kv_len = capacity.max_kv_len;
      attention.pages.table_stride = (capacity.max_kv_len + kPageTokens - 1) / kPageTokens;
      attention_bytes = ops.paged_attention_workspace(attention);
    }
    buffers.attention_workspace = arena.take("attention_workspace", attention_bytes);
    buffers.linear_workspace = arena.take(
        "linear_workspace", most_bytes(weights, [&](const LayerWeights& one) {
          return std::max(ops.linear_workspace(projection_of(one, buffers, tokens)),
                          ops.linear_workspace(output_of(spec.stack, one, buffers, tokens)));
        }));
  }
  if (layer.moe) {
    const Arena::Scope moe_block(arena);
    take_moe_buffers(*layer.moe, tokens, dtype, ops, arena, buffers.moe);
    return;
  }
  const auto block_of = [&](const LayerWeights& one) {
    return feed_forward_of(spec.stack, one, buffers, tokens);
  };
  {
    const Arena::Scope feed_forward_block(arena);
    buffers.feed_forward_workspace =
        arena.take("feed_forward_workspace", most_bytes(weights, [&](const LayerWeights& one) {
                     return ops.feed_forward_workspace(block_of(one));
                   }));
  }
  if (capacity.adapters.max_adapters == 0) return;
  const Arena::Scope adapted_block(arena);
  AdaptedBuffers& adapted = buffers.adapted;
  const FeedForwardArgs block = block_of(layer);
  adapted.sums = arena.take_matrix("adapted_sums", tokens, block.up.out_features, dtype);
  adapted.inner = arena.take_matrix("adapted_inner", tokens, block.down.in_features, dtype);
  adapted.linear_workspace =
      arena.take("adapted_workspace", most_bytes(weights, [&](const LayerWeights& one) {
                   const FeedForwardArgs args = block_of(one);
                   return std::max(ops.linear_workspace(sums_of(up_of(args, adapted))),
                                   ops.linear_workspace(down_of(args, adapted)));
                 }));
}

}  // namespace packhorse
