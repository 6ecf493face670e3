#include "model/encoder.h"

#include <algorithm>
#include <cmath>

#include "core/interrupt.h"
#include "model/heads.h"
#include "packhorse/error.h"

namespace packhorse {

TensorView take_matrix(Arena& arena, const char* name, int64_t rows, int64_t columns, DType dtype) {
  const size_t bytes = static_cast<size_t>(rows * columns) * size_of(dtype);
  return TensorView(arena.take(name, bytes), dtype, rows, columns);
}

namespace {

bool has_local_theta(const Spec& spec) {
  return spec.stack.attention.rope &&
         spec.stack.attention.rope->local_theta != spec.stack.attention.rope->theta;
}

AttentionMask mask_of(const Spec& spec, bool local) {
  AttentionMask mask;
  mask.causal = spec.stack.attention.causal;
  if (local) {
    mask.window_left = static_cast<int32_t>(spec.stack.attention.window);
    if (!spec.stack.attention.causal)
      mask.window_right = static_cast<int32_t>(spec.stack.attention.window);
  }
  return mask;
}

/// One batch on its way through the layers.
class Encoding {
 public:
  Encoding(const Spec& spec, const ModelWeights& weights, const EncoderInputs& inputs,
           const EncoderBuffers& buffers, Ops& ops)
      : spec_(spec),
        weights_(weights),
        inputs_(inputs),
        batch_(inputs.batch),
        buffers_(buffers),
        ops_(ops),
        hidden_(buffers.hidden.first_rows(batch_.num_tokens)) {}

  void run() const {
    embed();
    rotations();
    if (weights_.convolution) {
      ops_.neighbours({.x = hidden_,
                       .width = static_cast<int32_t>(spec_.stack.convolution.width),
                       .batch = batch_,
                       .out = buffers_.neighbours.first_rows(batch_.num_tokens)});
    }
    for (size_t i = 0; i < spec_.stack.layer_weights.size(); ++i) {
      if (ops_.device().type == DeviceType::kCpu) check_interrupt();  // others only queue
      const LayerWeights& layer =
          weights_.layers[static_cast<size_t>(spec_.stack.layer_weights[i])];
      attention_block(layer, spec_.stack.local_layers[i]);
      feed_forward_block(layer);
      if (i == 0 && weights_.convolution) convolve();
    }
    if (weights_.final_norm) {
      ops_.norm({.x = hidden_,
                 .residual = {},
                 .norm = weights_.final_norm,
                 .out = hidden_,
                 .row_count = batch_.counts});
    }
  }

 private:
  void embed() const {
    EmbedArgs args;
    args.ids = inputs_.ids;
    args.type_ids = inputs_.type_ids;
    args.position_ids = inputs_.position_ids;
    args.word = weights_.word_table;
    args.position = weights_.position_table;
    args.type = weights_.type_table;
    args.position_offset = spec_.stem.position_offset;
    args.norm = weights_.embedding_norm;
    args.batch = batch_;
    args.out = hidden_;
    if (weights_.embedding_projection) {
      args.out = buffers_.embedded.first_rows(batch_.num_tokens);
    }
    ops_.embed(args);
    if (!weights_.embedding_projection) return;
    ops_.linear({.x = args.out,
                 .weight = *weights_.embedding_projection,
                 .residual = {},
                 .norm = {},
                 .out = hidden_,
                 .row_count = batch_.counts,
                 .workspace = buffers_.embedding_workspace});
  }

  // hidden = norm(hidden + activation(convolution of what entered the first layer))
  void convolve() const {
    ops_.linear({.x = buffers_.neighbours.first_rows(batch_.num_tokens),
                 .weight = *weights_.convolution,
                 .activation = spec_.stack.convolution.activation,
                 .residual = hidden_,
                 .norm = weights_.convolution_norm,
                 .out = hidden_,
                 .row_count = batch_.counts,
                 .workspace = buffers_.convolution_workspace});
  }

  // Once for all layers.
  void rotations() const {
    if (!spec_.stack.attention.rope) return;
    const auto dims = static_cast<int32_t>(spec_.stack.attention.rope->dims);
    ops_.rotation({.frequencies = weights_.rope_frequencies,
                   .dims = dims,
                   .position_ids = inputs_.position_ids,
                   .batch = batch_,
                   .out = buffers_.rotation.first_rows(batch_.num_tokens)});
    if (!has_local_theta(spec_)) return;
    ops_.rotation({.frequencies = weights_.local_rope_frequencies,
                   .dims = dims,
                   .position_ids = inputs_.position_ids,
                   .batch = batch_,
                   .out = buffers_.local_rotation.first_rows(batch_.num_tokens)});
  }

  // What a block computes from: the stream itself, or a norm of it.
  TensorView block_input(const NormWeight& norm) const {
    if (!spec_.stack.pre_norm() || !norm) return hidden_;
    const TensorView normed = buffers_.normed.first_rows(batch_.num_tokens);
    ops_.norm(
        {.x = hidden_, .residual = {}, .norm = norm, .out = normed, .row_count = batch_.counts});
    return normed;
  }

  // post-norm: hidden = norm(hidden + output(attention(qkv(hidden))));
  // pre-norm:  hidden = hidden + output(attention(qkv(norm(hidden))))
  void attention_block(const LayerWeights& layer, bool local) const {
    const TensorView qkv = buffers_.qkv.first_rows(batch_.num_tokens);
    const TensorView context = buffers_.context.first_rows(batch_.num_tokens);
    const int64_t head_dim = padded_head_dim(spec_, ops_);
    const int64_t query_columns = spec_.stack.attention.num_heads * head_dim;
    const int64_t kv_columns = spec_.stack.attention.num_kv_heads * head_dim;
    AttentionArgs args;
    args.q = qkv.column_slice(0, query_columns);
    args.k = qkv.column_slice(query_columns, kv_columns);
    args.v = qkv.column_slice(query_columns + kv_columns, kv_columns);
    args.out = context;
    args.queries = batch_;
    args.keys = batch_;
    args.num_heads = static_cast<int32_t>(spec_.stack.attention.num_heads);
    args.num_kv_heads = static_cast<int32_t>(spec_.stack.attention.num_kv_heads);
    args.head_dim = static_cast<int32_t>(head_dim);
    // Each disentangled term counts as much as the product of contents.
    const int terms = 1 + (spec_.stack.attention.score_term.content_to_position ? 1 : 0) +
                      (spec_.stack.attention.score_term.position_to_content ? 1 : 0);
    args.scale = 1.0f / std::sqrt(static_cast<float>(terms * spec_.stack.attention.head_dim));
    if (spec_.stack.attention.rope)
      args.scale *= spec_.stack.attention.rope->attention_factor *
                    spec_.stack.attention.rope->attention_factor;
    args.mask = mask_of(spec_, local);
    args.term = weights_.score_term;
    args.term.position_keys = layer.position_keys;
    args.term.position_queries = layer.position_queries;
    args.rounded = layer.attention_output.dtype == DType::kInt8;  // what goes there, is rounded too
    args.workspace = buffers_.attention_workspace;
    project_heads(layer, local, qkv, args);
    ops_.attention(args);
    ops_.linear({.x = context,
                 .weight = layer.attention_output,
                 .residual = hidden_,
                 .norm = spec_.stack.pre_norm() ? NormWeight{} : layer.attention_norm,
                 .out = hidden_,
                 .row_count = batch_.counts,
                 .workspace = buffers_.output_workspace});
  }

  // qkv = heads of queries, keys and values
  void project_heads(const LayerWeights& layer, bool local, const TensorView& qkv,
                     const AttentionArgs& attention) const {
    const LinearArgs projection{.x = block_input(layer.attention_norm),
                                .weight = layer.qkv,
                                .residual = {},
                                .norm = {},
                                .out = qkv,
                                .row_count = batch_.counts,
                                .workspace = buffers_.output_workspace};
    if (!spec_.stack.attention.rope && !spec_.stack.attention.qk_norm)
      return ops_.linear(projection);
    RotateHeadsArgs args;
    args.q = attention.q;
    args.k = attention.k;
    args.num_heads = attention.num_heads;
    args.num_kv_heads = attention.num_kv_heads;
    args.head_dim = attention.head_dim;
    args.model_dim = static_cast<int32_t>(spec_.stack.attention.head_dim);
    args.q_norm = layer.query_norm;
    args.k_norm = layer.key_norm;
    if (spec_.stack.attention.rope) {
      const bool own = local && has_local_theta(spec_);
      const TensorView& rotation = own ? buffers_.local_rotation : buffers_.rotation;
      args.rotation = rotation.first_rows(batch_.num_tokens);
      args.frequencies = own ? weights_.local_rope_frequencies : weights_.rope_frequencies;
      args.dims = static_cast<int32_t>(spec_.stack.attention.rope->dims);
    }
    args.row_count = batch_.counts;
    ops_.project_heads(projection, args);
  }

  void feed_forward_block(const LayerWeights& layer) const {
    ops_.feed_forward({.x = block_input(layer.feed_forward_norm),
                       .up = layer.up,
                       .down = layer.down,
                       .activation = spec_.stack.feed_forward.activation,
                       .gated = spec_.stack.feed_forward.gated,
                       .residual = hidden_,
                       .norm = spec_.stack.pre_norm() ? NormWeight{} : layer.feed_forward_norm,
                       .out = hidden_,
                       .row_count = batch_.counts,
                       .workspace = buffers_.feed_forward_workspace});
  }

  const Spec& spec_;
  const ModelWeights& weights_;
  const EncoderInputs& inputs_;
  const BatchView& batch_;
  const EncoderBuffers& buffers_;
  Ops& ops_;
  const TensorView hidden_;
};

}  // namespace

InputLayout::InputLayout(const Capacity& capacity) {
  const auto aligned = [](int64_t count) { return (count + 63) / 64 * 64; };
  counts = 0;
  reported = 2;
  cu_seqlens = aligned(3);
  prediction_rows = cu_seqlens + aligned(capacity.max_sequences + 1);
  ids = prediction_rows + aligned(capacity.max_predictions);
  type_ids = ids + aligned(capacity.max_tokens);
  position_ids = type_ids + aligned(capacity.max_tokens);
  size = position_ids + aligned(capacity.max_tokens);
}

EncoderBuffers take_buffers(const Spec& spec, const Capacity& capacity, DType model_dtype,
                            const Ops& ops, Arena& arena) {
  const DType dtype = ops.activation_dtype(model_dtype);
  const int64_t tokens = capacity.max_tokens;
  const int64_t sequences = capacity.max_sequences;
  const int64_t hidden_size = spec.hidden_size;
  const int64_t head_dim = padded_head_dim(spec, ops);
  const int64_t query_columns = spec.stack.attention.num_heads * head_dim;
  const int64_t qkv_columns = query_columns + 2 * spec.stack.attention.num_kv_heads * head_dim;
  EncoderBuffers buffers;
  buffers.inputs =
      arena.take_array<int32_t>("inputs", static_cast<size_t>(InputLayout(capacity).size));
  buffers.hidden = take_matrix(arena, "hidden", tokens, hidden_size, dtype);
  if (spec.stack.pre_norm()) {
    buffers.normed = take_matrix(arena, "normed", tokens, hidden_size, dtype);
  }
  if (spec.stack.attention.rope) {
    buffers.rotation =
        take_matrix(arena, "rotation", tokens,
                    ops.rotation_columns(spec.stack.attention.rope->dims), DType::kFloat32);
  }
  if (has_local_theta(spec)) {
    buffers.local_rotation =
        take_matrix(arena, "local_rotation", tokens,
                    ops.rotation_columns(spec.stack.attention.rope->dims), DType::kFloat32);
  }
  if (spec.stack.convolution.width > 0) {
    const int64_t columns = spec.stack.convolution.width * hidden_size;
    buffers.neighbours = take_matrix(arena, "neighbours", tokens, columns, dtype);
    buffers.convolution_workspace = arena.take(
        "convolution_workspace", ops.linear_workspace(tokens, columns, hidden_size, dtype));
  }
  if (spec.stem.projection) {
    Arena::Scope embeddings(arena);
    buffers.embedded = take_matrix(arena, "embedded", tokens, spec.stem.embedding_size, dtype);
    buffers.embedding_workspace =
        arena.take("embedding_workspace",
                   ops.linear_workspace(tokens, spec.stem.embedding_size, hidden_size, dtype));
  }
  if (spec.stack.num_layers > 0) {
    Arena::Scope attention_block(arena);
    buffers.qkv = take_matrix(arena, "qkv", tokens, qkv_columns, dtype);
    buffers.context = take_matrix(arena, "context", tokens, query_columns, dtype);
    buffers.attention_workspace =
        arena.take("attention_workspace",
                   ops.attention_workspace(tokens, sequences, std::min(tokens, spec.max_seqlen),
                                           spec.stack.attention.num_heads, head_dim, dtype));
    buffers.output_workspace =
        arena.take("linear_workspace",
                   std::max(ops.linear_workspace(tokens, hidden_size, qkv_columns, model_dtype),
                            ops.linear_workspace(tokens, query_columns, hidden_size, model_dtype)));
  }
  if (spec.stack.num_layers > 0) {
    Arena::Scope feed_forward_block(arena);
    buffers.feed_forward_workspace = arena.take(
        "feed_forward_workspace",
        ops.feed_forward_workspace(tokens, hidden_size, padded_intermediate_size(spec, ops),
                                   spec.stack.feed_forward.gated, model_dtype));
  }
  {
    Arena::Scope results(arena);
    take_head_buffers(spec, capacity, dtype, ops, arena, buffers);
    if (dtype != DType::kFloat32) {
      buffers.as_float32 = take_matrix(arena, "hidden_float32", std::max(tokens, sequences),
                                       hidden_size, DType::kFloat32);
    }
  }
  return buffers;
}

void encode(const Spec& spec, const ModelWeights& weights, const EncoderInputs& inputs,
            const EncoderBuffers& buffers, Ops& ops) {
  if (inputs.position_ids != nullptr && spec.stem.position_kind == PositionKind::kNone &&
      !spec.stack.attention.rope) {
    throw InvalidArgument("position_ids were given, but this model knows distances only");
  }
  Encoding(spec, weights, inputs, buffers, ops).run();
}

}  // namespace packhorse
