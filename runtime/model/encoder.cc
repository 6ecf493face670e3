#include "model/encoder.h"

#include <algorithm>
#include <cmath>

namespace packhorse {
namespace {

TensorView take_matrix(Arena& arena, const char* name, int64_t rows, int64_t columns, DType dtype) {
  const size_t bytes = static_cast<size_t>(rows * columns) * size_of(dtype);
  return TensorView(arena.take(name, bytes), dtype, rows, columns);
}

// hidden = norm(hidden + output(attention(qkv(hidden))))
void attention_block(const Spec& spec, const LayerWeights& layer, const BatchView& batch,
                     const EncoderBuffers& buffers, Ops& ops) {
  const int64_t tokens = batch.num_tokens;
  const TensorView hidden = buffers.hidden.first_rows(tokens);
  const TensorView qkv = buffers.qkv.first_rows(tokens);
  const TensorView context = buffers.context.first_rows(tokens);
  const int64_t head_dim = padded_head_dim(spec, ops);
  const int64_t query_columns = spec.num_heads * head_dim;
  const int64_t kv_columns = spec.num_kv_heads * head_dim;
  const int32_t* row_count = batch.counts;

  ops.linear({.x = hidden,
              .weight = layer.qkv,
              .residual = {},
              .norm = {},
              .out = qkv,
              .row_count = row_count,
              .workspace = buffers.output_workspace});
  AttentionArgs attention;
  attention.q = qkv.column_slice(0, query_columns);
  attention.k = qkv.column_slice(query_columns, kv_columns);
  attention.v = qkv.column_slice(query_columns + kv_columns, kv_columns);
  attention.out = context;
  attention.queries = batch;
  attention.keys = batch;
  attention.num_heads = static_cast<int32_t>(spec.num_heads);
  attention.num_kv_heads = static_cast<int32_t>(spec.num_kv_heads);
  attention.head_dim = static_cast<int32_t>(head_dim);
  attention.scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim));
  attention.mask = spec.mask;
  attention.workspace = buffers.attention_workspace;
  ops.attention(attention);
  ops.linear({.x = context,
              .weight = layer.attention_output,
              .residual = hidden,
              .norm = layer.attention_norm,
              .out = hidden,
              .row_count = row_count,
              .workspace = buffers.output_workspace});
}

}  // namespace

InputLayout::InputLayout(const Capacity& capacity) {
  const auto aligned = [](int64_t count) { return (count + 63) / 64 * 64; };
  counts = 0;
  reported = 2;
  cu_seqlens = aligned(3);
  ids = cu_seqlens + aligned(capacity.max_sequences + 1);
  type_ids = ids + aligned(capacity.max_tokens);
  position_ids = type_ids + aligned(capacity.max_tokens);
  size = position_ids + aligned(capacity.max_tokens);
}

EncoderBuffers take_buffers(const Spec& spec, const Capacity& capacity, DType dtype, const Ops& ops,
                            Arena& arena) {
  const int64_t tokens = capacity.max_tokens;
  const int64_t sequences = capacity.max_sequences;
  const int64_t hidden_size = spec.hidden_size;
  const int64_t head_dim = padded_head_dim(spec, ops);
  const int64_t query_columns = spec.num_heads * head_dim;
  const int64_t qkv_columns = query_columns + 2 * spec.num_kv_heads * head_dim;
  EncoderBuffers buffers;
  buffers.inputs =
      arena.take_array<int32_t>("inputs", static_cast<size_t>(InputLayout(capacity).size));
  buffers.hidden = take_matrix(arena, "hidden", tokens, hidden_size, dtype);
  {
    Arena::Scope attention_block(arena);
    buffers.qkv = take_matrix(arena, "qkv", tokens, qkv_columns, dtype);
    buffers.context = take_matrix(arena, "context", tokens, query_columns, dtype);
    buffers.attention_workspace =
        arena.take("attention_workspace",
                   ops.attention_workspace(tokens, sequences, std::min(tokens, spec.max_seqlen),
                                           spec.num_heads, head_dim, dtype));
    buffers.output_workspace =
        arena.take("linear_workspace",
                   std::max(ops.linear_workspace(tokens, hidden_size, qkv_columns, dtype),
                            ops.linear_workspace(tokens, query_columns, hidden_size, dtype)));
  }
  {
    Arena::Scope feed_forward_block(arena);
    buffers.feed_forward_workspace =
        arena.take("feed_forward_workspace",
                   ops.feed_forward_workspace(tokens, hidden_size, spec.intermediate_size, dtype));
  }
  {
    Arena::Scope results(arena);
    buffers.embedding = take_matrix(arena, "embedding", sequences, hidden_size, DType::kFloat32);
    if (spec.pooler) {
      buffers.first_token = take_matrix(arena, "first_token", sequences, hidden_size, dtype);
      buffers.pooled = take_matrix(arena, "pooled", sequences, hidden_size, dtype);
      buffers.pooler_workspace = arena.take(
          "pooler_workspace", ops.linear_workspace(sequences, hidden_size, hidden_size, dtype));
    }
    if (dtype != DType::kFloat32) {
      buffers.as_float32 = take_matrix(arena, "hidden_float32", std::max(tokens, sequences),
                                       hidden_size, DType::kFloat32);
    }
  }
  return buffers;
}

void encode(const Spec& spec, const ModelWeights& weights, const EncoderInputs& inputs,
            const EncoderBuffers& buffers, Ops& ops) {
  const BatchView& batch = inputs.batch;
  const TensorView hidden = buffers.hidden.first_rows(batch.num_tokens);
  EmbedArgs embed;
  embed.ids = inputs.ids;
  embed.type_ids = inputs.type_ids;
  embed.position_ids = inputs.position_ids;
  embed.word = weights.word_table;
  embed.position = weights.position_table;
  embed.type = weights.type_table;
  embed.position_offset = spec.position_offset;
  embed.norm = weights.embedding_norm;
  embed.batch = batch;
  embed.out = hidden;
  ops.embed(embed);
  for (const LayerWeights& layer : weights.layers) {
    attention_block(spec, layer, batch, buffers, ops);
    ops.feed_forward({.x = hidden,
                      .up = layer.up,
                      .down = layer.down,
                      .activation = spec.activation,
                      .residual = hidden,
                      .norm = layer.feed_forward_norm,
                      .out = hidden,
                      .row_count = batch.counts,
                      .workspace = buffers.feed_forward_workspace});
  }
}

TensorView embed_sequences(const Spec& spec, const BatchView& batch, const EncoderBuffers& buffers,
                           Ops& ops) {
  const TensorView out = buffers.embedding.first_rows(batch.num_sequences);
  ops.pool({.x = buffers.hidden.first_rows(batch.num_tokens),
            .batch = batch,
            .pooling = spec.pooling,
            .normalize = spec.normalize,
            .out = out});
  return out;
}

TensorView pool_first_tokens(const Spec& spec, const ModelWeights& weights, const BatchView& batch,
                             const EncoderBuffers& buffers, Ops& ops) {
  const TensorView first_token = buffers.first_token.first_rows(batch.num_sequences);
  const TensorView out = buffers.pooled.first_rows(batch.num_sequences);
  ops.pool({.x = buffers.hidden.first_rows(batch.num_tokens),
            .batch = batch,
            .pooling = Pooling::kCls,
            .normalize = false,
            .out = first_token});
  ops.linear({.x = first_token,
              .weight = *weights.pooler,
              .activation = *spec.pooler,
              .residual = {},
              .norm = {},
              .out = out,
              .workspace = buffers.pooler_workspace});
  return out;
}

}  // namespace packhorse
