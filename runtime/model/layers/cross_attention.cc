#include "model/layers/cross_attention.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/math.h"
#include "model/layers/adapted_linear.h"
#include "model/layers/residual.h"
#include "model/layers/stack_load.h"

namespace packhorse {
namespace {

const CrossAttentionWeights* cross_of(const BlockWeights& block) {
  return std::get_if<CrossAttentionWeights>(&block.kind);
}

AttentionArgs attention_args(const AttentionSpec& spec, const CrossAttentionWeights& weights,
                             const CrossAttentionBuffers& buffers, const BatchView& batch) {
  AttentionArgs args;
  args.q = buffers.query.first_rows(batch.num_tokens);
  args.out = buffers.context.first_rows(batch.num_tokens);
  args.queries = batch;
  args.num_heads = static_cast<int32_t>(spec.num_heads);
  args.num_kv_heads = static_cast<int32_t>(spec.num_kv_heads);
  args.head_dim = static_cast<int32_t>(weights.query.out_features / spec.num_heads);
  args.scale = spec.scale.value_or(1.0f / std::sqrt(static_cast<float>(spec.head_dim)));
  args.rounded = is_quantized(weights.output);
  args.workspace = buffers.workspace;
  return args;
}

LinearArgs query_of(const CrossAttentionWeights& weights, const LayerBuffers& buffers,
                    int64_t rows) {
  LinearArgs args;
  args.x = buffers.hidden.first_rows(rows);
  args.weight = weights.query;
  args.out = buffers.cross.query.first_rows(rows);
  args.workspace = buffers.cross.linear_workspace;
  return args;
}

LinearArgs key_value_of(const CrossAttentionWeights& weights, const SourceKeyBuffers& buffers,
                        const TensorView& hidden) {
  LinearArgs args;
  args.x = hidden;
  args.weight = weights.key_value;
  args.out = buffers.key_value.first_rows(hidden.rows());
  args.workspace = buffers.workspace;
  return args;
}

LinearArgs output_of(const StackSpec& spec, const CrossAttentionWeights& weights,
                     const LayerBuffers& buffers, int64_t rows) {
  LinearArgs args;
  args.x = buffers.cross.context.first_rows(rows);
  args.weight = weights.output;
  args.workspace = buffers.cross.linear_workspace;
  set_result(args, spec, buffers, rows);
  return args;
}

std::string name_of(const StackSpec& stack, int64_t set) {
  return name_of_block(stack, set, "cross_attention.");
}

int64_t stored_heads(const CrossAttentionSpec& spec, const LayerPacker& packer) {
  return spec.num_heads * packer.padded(spec.head_dim);
}

}  // namespace

DenseLayout cross_query_layout(const StackSpec& stack, const CrossAttentionSpec& spec,
                               const LayerPacker& packer, int64_t set) {
  const std::string name = name_of(stack, set) + "query";
  return {name,
          {{name, place_heads(spec, packer, spec.num_heads, 0), spec.qkv_bias}},
          stored_heads(spec, packer),
          whole(stack.hidden_size),
          packer.width(stack.hidden_size)};
}

DenseLayout cross_key_value_layout(const StackSpec& stack, const StackSpec& source,
                                   const CrossAttentionSpec& spec, const LayerPacker& packer,
                                   int64_t set) {
  const std::string name = name_of(stack, set);
  const int64_t heads = spec.num_kv_heads;
  const int64_t columns = source.hidden_size;
  return {name + "key_value",
          {{name + "key", place_heads(spec, packer, heads, 0), spec.key_bias},
           {name + "value", place_heads(spec, packer, heads, heads), spec.qkv_bias}},
          2 * heads * packer.padded(spec.head_dim),
          whole(columns),
          packer.width(columns)};
}

DenseLayout cross_output_layout(const StackSpec& stack, const CrossAttentionSpec& spec,
                                const LayerPacker& packer, int64_t set) {
  const std::string name = name_of(stack, set) + "output";
  return {name,
          {{name, whole(stack.hidden_size), spec.output_bias}},
          packer.width(stack.hidden_size),
          place_heads(spec, packer, spec.num_heads, 0),
          stored_heads(spec, packer)};
}

CrossAttentionWeights build_cross_attention(const StackLoad& load, const CrossAttentionSpec& spec,
                                            int64_t set) {
  LayerPacker& packer = load.packer;
  const StackSpec& stack = load.spec;
  const LinearFormat& format = packer.precision().layers;
  CrossAttentionWeights weights;
  // Keys and values of a source are computed for all its tokens at once.
  LinearFormat of_source = format;
  of_source.skinny = false;
  weights.query = packer.linear(cross_query_layout(stack, spec, packer, set), format);
  weights.key_value =
      packer.linear(cross_key_value_layout(stack, *load.source, spec, packer, set), of_source);
  weights.output = packer.linear(cross_output_layout(stack, spec, packer, set), format);
  return weights;
}

void take_cross_attention(const StackSpec& spec, const StackWeights& weights,
                          const Capacity& capacity, const Ops& ops, Arena& arena,
                          LayerBuffers& buffers) {
  const int64_t tokens = capacity.max_tokens;
  const DType dtype = buffers.hidden.dtype;
  const CrossAttentionWeights& first = *cross_of(weights.layers.front().blocks[1]);
  CrossAttentionBuffers& taken = buffers.cross;
  taken.query = arena.take_matrix("cross_query", tokens, first.query.out_features, dtype);
  taken.context = arena.take_matrix("cross_context", tokens, first.output.in_features, dtype);
  BatchView batch;
  batch.num_tokens = tokens;
  batch.num_sequences = capacity.max_sequences;
  batch.max_seqlen = std::min(tokens, spec.max_seqlen);
  AttentionArgs attention =
      attention_args(*attention_of(spec.layers.front().blocks[1]), first, taken, batch);
  attention.pages.keys = TensorView(nullptr, dtype, 0, attention.head_dim);
  attention.pages.values = attention.pages.keys;
  attention.pages.max_kv_len = capacity.max_source;
  attention.pages.table_stride = ceil_div(capacity.max_source, kPageTokens);
  taken.workspace =
      arena.take("cross_attention_workspace", ops.paged_attention_workspace(attention));
  size_t bytes = 0;
  for (const LayerWeights& layer : weights.layers) {
    const CrossAttentionWeights& one = *cross_of(layer.blocks[1]);
    bytes = std::max({bytes, ops.linear_workspace(query_of(one, buffers, tokens)),
                      ops.linear_workspace(output_of(spec, one, buffers, tokens))});
  }
  taken.linear_workspace = arena.take("cross_linear_workspace", bytes);
}

SourceKeyBuffers take_source_keys(const StackWeights& weights, const Capacity& capacity,
                                  DType dtype, const Ops& ops, Arena& arena) {
  const int64_t tokens = capacity.max_tokens;
  SourceKeyBuffers buffers;
  const LinearWeight& first = cross_of(weights.layers.front().blocks[1])->key_value;
  buffers.key_value = arena.take_matrix("source_keys", tokens, first.out_features, dtype);
  const TensorView hidden(nullptr, dtype, tokens, first.in_features);
  size_t bytes = 0;
  for (const LayerWeights& layer : weights.layers) {
    bytes = std::max(
        bytes, ops.linear_workspace(key_value_of(*cross_of(layer.blocks[1]), buffers, hidden)));
  }
  buffers.workspace = arena.take("source_keys_workspace", bytes);
  return buffers;
}

void write_source(const StackSpec& stack, const StackWeights& weights,
                  const SourceKeyBuffers& buffers, const TensorView& hidden, const BatchView& batch,
                  std::span<const PagedKvCache> layers, const AdapterBatch* adapters, Ops& ops) {
  for (size_t layer = 0; layer < stack.layers.size(); ++layer) {
    const auto set = static_cast<size_t>(stack.layers[layer].weights);
    LinearArgs linear = key_value_of(*cross_of(weights.layers[set].blocks[1]), buffers, hidden);
    linear.row_count = batch.counts;
    ops.linear(linear);
    if (adapters != nullptr && adapters->uses[LoraTarget::kCrossKeyValue]) {
      LoraArgs lora = lora_of(*adapters, set, LoraTarget::kCrossKeyValue, hidden, linear.out,
                              buffers.adapted_ranks);
      lora.row_count = batch.counts;
      ops.add_lora(lora);
    }
    const int64_t columns = linear.out.columns() / 2;
    const auto heads = attention_of(stack.layers[layer].blocks[1])->num_kv_heads;
    ops.append_kv_cache({.k = linear.out.column_slice(0, columns),
                         .v = linear.out.column_slice(columns, columns),
                         .pages = layers[layer],
                         .batch = batch,
                         .num_kv_heads = static_cast<int32_t>(heads),
                         .head_dim = static_cast<int32_t>(columns / heads)});
  }
}

void compute(const StackRun& run, const Block& block, const CrossAttentionWeights& weights) {
  LinearArgs query = query_of(weights, run.buffers, run.batch.num_tokens);
  query.x = block_input(run, block);
  query.row_count = run.batch.counts;
  run_linear(run, block, LoraTarget::kCrossQuery, query);
  AttentionArgs args =
      attention_args(*attention_of(block.spec), weights, run.buffers.cross, run.batch);
  args.queries = run.source->queries(run.batch);
  args.pages = run.source->keys(block.layer, {}).pages;
  run.source->before_attention(block.layer, args);
  run.ops.attention(args);
}

void add(const StackRun& run, const Block& block, const CrossAttentionWeights& weights) {
  LinearArgs output = output_of(run.spec, weights, run.buffers, run.batch.num_tokens);
  if (!run.spec.pre_norm()) set_norm(output, run, block.weights.norm, block.read);
  output.row_count = run.batch.counts;
  run_linear(run, block, LoraTarget::kCrossOutput, output);
  add_result(run, block);
}

}  // namespace packhorse
