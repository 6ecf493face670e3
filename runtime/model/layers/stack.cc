#include "model/layers/stack.h"

#include "model/layers/moe.h"
#include "model/layers/stack_args.h"

namespace packhorse {
namespace {

AttentionMask mask_of(const AttentionSpec& spec, bool local) {
  AttentionMask mask;
  mask.causal = spec.causal;
  if (local) {
    mask.window_left = static_cast<int32_t>(spec.window);
    if (!spec.causal) mask.window_right = static_cast<int32_t>(spec.window);
  }
  return mask;
}

}  // namespace

void Stack::run(const TokenBatch& tokens, KeySource& keys, void (*before_layer)()) const {
  const BatchView& batch = tokens.batch;
  const TensorView hidden = buffers_.hidden.first_rows(batch.num_tokens);
  if (spec_.attention.rope) rotate(tokens, weights_.rope_frequencies, buffers_.rotation);
  if (spec_.attention.has_local_theta()) {
    rotate(tokens, weights_.local_rope_frequencies, buffers_.local_rotation);
  }
  if (spec_.residual_scales) {
    AddScaledArgs args;
    args.x = args.out = hidden;
    args.x_shift = weights_.scales.output_shift;
    args.x_scale = weights_.scales.output_scale;
    args.row_count = batch.counts;
    ops_.add_scaled(args);
  }
  if (weights_.convolution) {
    ops_.unfold({.x = hidden,
                 .width = static_cast<int32_t>(spec_.convolution.width),
                 .batch = batch,
                 .out = buffers_.unfolded.first_rows(batch.num_tokens)});
  }
  // In post-norm models the norm at the end of a block makes the input of the next in e4m3, too.
  if (weights_.float8() && !spec_.pre_norm()) quantize({}, batch);
  for (size_t i = 0; i < spec_.layer_weights.size(); ++i) {
    if (before_layer != nullptr) before_layer();
    const LayerWeights& layer = weights_.layers[static_cast<size_t>(spec_.layer_weights[i])];
    attend(layer, i, batch, keys);
    // Parallel blocks compute from the same hidden state.
    TensorView input;
    if (spec_.parallel()) input = feed_forward_input(layer, batch);
    add_attention(layer, i, batch);
    if (!spec_.parallel()) input = feed_forward_input(layer, batch);
    add_feed_forward(layer, i, input, batch);
    if (i == 0 && weights_.convolution) convolve(batch);
  }
  if (weights_.final_norm) {
    ops_.norm({.x = hidden, .norm = weights_.final_norm, .out = hidden, .row_count = batch.counts});
  }
}

// Computes the rotation of each token, once for all layers.
void Stack::rotate(const TokenBatch& tokens, const float* frequencies,
                   const TensorView& out) const {
  ops_.rotation({.frequencies = frequencies,
                 .dims = static_cast<int32_t>(spec_.attention.rope->dims),
                 .position_ids = tokens.position_ids,
                 .batch = tokens.batch,
                 .out = out.first_rows(tokens.batch.num_tokens)});
}

// Writes the hidden state, or its norm if there is one, in e4m3 alone.
void Stack::quantize(const NormWeight& norm, const BatchView& batch) const {
  NormArgs args;
  args.x = buffers_.hidden.first_rows(batch.num_tokens);
  args.norm = norm;
  args.row_count = batch.counts;
  args.quantized = quantized_of(buffers_, batch.num_tokens);
  ops_.norm(args);
}

// Returns the input of a block: the hidden state, or in pre-norm models its norm; either in e4m3 if
// that is what the block reads.
TensorView Stack::block_input(const NormWeight& norm, const BatchView& batch) const {
  const TensorView hidden = buffers_.hidden.first_rows(batch.num_tokens);
  if (weights_.float8()) {
    if (spec_.pre_norm()) quantize(norm, batch);
    return buffers_.quantized.values.first_rows(batch.num_tokens);
  }
  if (!spec_.pre_norm() || !norm) return hidden;
  const TensorView normed = buffers_.normed.first_rows(batch.num_tokens);
  ops_.norm({.x = hidden, .norm = norm, .out = normed, .row_count = batch.counts});
  return normed;
}

// Sets the norm at the end of a block, whose result is also quantised if a block that follows reads
// it in e4m3.
template <class Args>
void Stack::set_norm(Args& args, const NormWeight& norm, bool read) const {
  args.norm = norm;
  if (read && weights_.float8()) args.quantized = quantized_of(buffers_, args.x.rows());
}

// context = attention(qkv(hidden)), or of a norm of hidden
void Stack::attend(const LayerWeights& layer, size_t index, const BatchView& batch,
                   KeySource& keys) const {
  const bool local = spec_.local_layers[index];
  AttentionArgs args = attention_of(spec_.attention, weights_, buffers_, batch);
  if (layer.attention.convolutions) {
    compress_heads(layer, index, batch, keys);
  } else {
    qkv_rope(layer, index, args);
  }
  const Keys source = keys.keys(index, {args.k, args.v, args.keys, {}});
  args.k = source.k;
  args.v = source.v;
  args.keys = source.batch;
  args.pages = source.pages;
  args.mask = mask_of(spec_.attention, local);
  args.term.position_keys = layer.attention.position_keys;
  args.term.position_queries = layer.attention.position_queries;
  // A quantised layer rounds the output of attention anyway.
  args.rounded = layer.attention.output.dtype == DType::kInt8;
  args.out_scale = layer.attention.context_scale;
  ops_.attention(args);
}

// post-norm: hidden = norm(hidden + output(context)); else hidden = hidden + output(context), or
// hidden + norm(output(context))
void Stack::add_attention(const LayerWeights& layer, size_t index, const BatchView& batch) const {
  LinearArgs output = output_of(spec_, layer, buffers_, batch.num_tokens);
  if (!spec_.pre_norm()) set_norm(output, layer.attention_norm, true);
  output.row_count = batch.counts;
  run_linear(LoraTarget::kOutput, index, output);
  add_normed(layer.attention_output_norm, batch);
  if (spec_.residual_scales) add_scaled(layer.attention_scales, batch);
}

// Whether an adapter of the batch adds something to these layers.
bool Stack::adapts(LoraTarget target) const {
  return adapters_ != nullptr && adapters_->uses[static_cast<size_t>(target)];
}

// What adapters add to layer `index` of the stack.
LoraArgs Stack::lora_of(LoraTarget target, size_t index, const TensorView& x, const TensorView& out,
                        const int32_t* row_count) const {
  LoraArgs args;
  args.x = x;
  args.layer =
      adapters_->slots
          ->layers[static_cast<size_t>(spec_.layer_weights[index])][static_cast<size_t>(target)];
  args.slots = adapters_->rows;
  args.out = out;
  args.row_count = row_count;
  args.workspace = buffers_.adapted.workspace;
  return args;
}

// A dense layer without an activation, and what adapters add to it: to the residual, so that a norm
// sees it, or else to the result.
void Stack::run_linear(LoraTarget target, size_t index, const LinearArgs& args) const {
  const bool adapted = adapts(target);
  const auto add = [&](const TensorView& to) {
    ops_.add_lora(lora_of(target, index, args.x, to, args.row_count));
  };
  if (adapted && args.residual) add(args.residual);
  ops_.linear(args);
  if (adapted && !args.residual) add(args.out);
}

// Adds the norm of what a block gave to the hidden state, if there is such a norm.
void Stack::add_normed(const NormWeight& norm, const BatchView& batch) const {
  if (!norm) return;
  const TensorView hidden = buffers_.hidden.first_rows(batch.num_tokens);
  ops_.norm({.x = buffers_.normed.first_rows(batch.num_tokens),
             .norm = norm,
             .out = hidden,
             .added = hidden,
             .row_count = batch.counts});
}

// Adds what a block gave to the hidden state, both scaled if there are scales.
void Stack::add_scaled(const ResidualScales& scales, const BatchView& batch) const {
  const TensorView hidden = buffers_.hidden.first_rows(batch.num_tokens);
  ops_.add_scaled({.x = buffers_.normed.first_rows(batch.num_tokens),
                   .x_shift = scales.output_shift,
                   .x_scale = scales.output_scale,
                   .residual = hidden,
                   .residual_shift = scales.residual_shift,
                   .residual_scale = scales.residual_scale,
                   .out = hidden,
                   .row_count = batch.counts});
}

// Computes the heads of queries, keys and values into buffers_.qkv, normalised and rotated if the
// spec says so.
void Stack::qkv_rope(const LayerWeights& layer, size_t index,
                     const AttentionArgs& attention) const {
  const BatchView& batch = attention.queries;
  LinearArgs projection = projection_of(layer, buffers_, batch.num_tokens);
  projection.x = block_input(layer.attention_norm, batch);
  projection.row_count = batch.counts;
  if (!rotates(index) && !spec_.attention.qk_norm) {
    return run_linear(LoraTarget::kQkv, index, projection);
  }
  RopeArgs args;
  args.q = attention.q;
  args.k = attention.k;
  args.num_heads = attention.num_heads;
  args.num_kv_heads = attention.num_kv_heads;
  args.head_dim = attention.head_dim;
  args.model_dim = static_cast<int32_t>(spec_.attention.head_dim);
  args.q_norm = layer.attention.query_norm;
  args.k_norm = layer.attention.key_norm;
  set_rotation(args, index, batch);
  args.row_count = batch.counts;
  if (!adapts(LoraTarget::kQkv)) return ops_.qkv_rope(projection, args);
  ops_.qkv_rope(projection, args,
                lora_of(LoraTarget::kQkv, index, projection.x, projection.out, batch.counts));
}

bool Stack::rotates(size_t index) const {
  return spec_.attention.rope && spec_.rotated_layers[index];
}

// The rotation of the heads of a layer, if it has one.
template <class Args>
void Stack::set_rotation(Args& args, size_t index, const BatchView& batch) const {
  if (!rotates(index)) return;
  const bool own = spec_.local_layers[index] && spec_.attention.has_local_theta();
  const TensorView& rotation = own ? buffers_.local_rotation : buffers_.rotation;
  args.rotation = rotation.first_rows(batch.num_tokens);
  args.frequencies = own ? weights_.local_rope_frequencies : weights_.rope_frequencies;
  args.dims = static_cast<int32_t>(spec_.attention.rope->dims);
}

// Likewise of compressed attention: the projection gives latents, and convolutions of these heads.
void Stack::compress_heads(const LayerWeights& layer, size_t index, const BatchView& batch,
                           KeySource& keys) const {
  LinearArgs projection = projection_of(layer, buffers_, batch.num_tokens);
  projection.x = block_input(layer.attention_norm, batch);
  projection.row_count = batch.counts;
  run_linear(LoraTarget::kQkv, index, projection);
  CcaArgs args = compression_of(spec_.attention, layer, buffers_, batch, weights_.head_dim);
  set_rotation(args, index, batch);
  args.pages = keys.latents(index);
  ops_.cca(args);
}

TensorView Stack::feed_forward_input(const LayerWeights& layer, const BatchView& batch) const {
  if (spec_.shared_norm) {
    const bool float8 = weights_.float8();
    return (float8 ? buffers_.quantized.values : buffers_.normed).first_rows(batch.num_tokens);
  }
  return block_input(layer.feed_forward_norm, batch);
}

void Stack::add_feed_forward(const LayerWeights& layer, size_t index, const TensorView& input,
                             const BatchView& batch) const {
  if (layer.moe) {
    run_moe(*layer.moe, spec_.feed_forward.activation, buffers_.moe, input, batch.counts, ops_);
    return add_scaled(layer.feed_forward_scales, batch);
  }
  FeedForwardArgs args = feed_forward_of(spec_, layer, buffers_, batch.num_tokens);
  args.x = input;
  const bool last = index + 1 == spec_.layer_weights.size();
  const bool convolved = index == 0 && weights_.convolution;
  if (!spec_.pre_norm()) set_norm(args, layer.feed_forward_norm, !last && !convolved);
  args.row_count = batch.counts;
  if (adapts(LoraTarget::kUp) || adapts(LoraTarget::kDown)) {
    run_adapted_feed_forward(index, args);
  } else {
    ops_.feed_forward(args);
  }
  add_normed(layer.feed_forward_output_norm, batch);
  if (spec_.residual_scales) add_scaled(layer.feed_forward_scales, batch);
}

// A feed-forward block in two halves. Tokens without an adapter have the bits of the one operator:
// their activation is computed from sums that were not rounded, where the device does so.
void Stack::run_adapted_feed_forward(size_t index, const FeedForwardArgs& args) const {
  const FeedForwardUpArgs up = up_of(args, buffers_.adapted);
  const bool adapted = adapts(LoraTarget::kUp);
  if (!adapted || !adapters_->up_of_all) ops_.feed_forward_up(up);
  if (adapted) {
    ops_.linear(sums_of(up));
    const LoraArgs lora = lora_of(LoraTarget::kUp, index, up.x, up.sums, up.row_count);
    ops_.add_lora(lora);
    ops_.activate({.x = up.sums,
                   .activation = up.activation,
                   .gated = up.gated,
                   .slots = lora.slots,
                   .ranks = lora.layer.ranks,
                   .out = up.out,
                   .row_count = up.row_count});
  }
  run_linear(LoraTarget::kDown, index, down_of(args, buffers_.adapted));
}

// hidden = norm(hidden + activation(convolution of what entered the first layer))
void Stack::convolve(const BatchView& batch) const {
  LinearArgs args = convolution_of(weights_, buffers_, batch.num_tokens);
  args.activation = spec_.convolution.activation;
  set_norm(args, weights_.convolution_norm, spec_.layer_weights.size() > 1);
  args.row_count = batch.counts;
  ops_.linear(args);
}

}  // namespace packhorse
