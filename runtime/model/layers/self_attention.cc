#include "model/layers/self_attention.h"

#include <algorithm>
#include <cmath>

#include "core/math.h"
#include "model/layers/adapted_linear.h"
#include "model/layers/residual.h"
#include "model/layers/rope.h"
#include "model/layers/stack_load.h"

namespace packhorse {
namespace {

AttentionMask mask_of(const AttentionSpec& spec) {
  AttentionMask mask;
  mask.causal = spec.causal;
  if (spec.window) {
    mask.window_left = static_cast<int32_t>(*spec.window);
    if (!spec.causal) mask.window_right = static_cast<int32_t>(*spec.window);
  }
  return mask;
}

AttentionArgs attention_args(const StackSpec& stack, const AttentionSpec& spec,
                             const StackWeights& weights, const SelfAttentionBuffers& buffers,
                             const BatchView& batch) {
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
  const int terms = 1 + (stack.score_term.content_to_position ? 1 : 0) +
                    (stack.score_term.position_to_content ? 1 : 0);
  args.scale = spec.scale.value_or(1.0f / std::sqrt(static_cast<float>(terms * spec.head_dim)));
  if (spec.rope) {
    const float factor = stack.ropes[*spec.rope].attention_factor;
    args.scale *= factor * factor;
  }
  args.term = weights.score_term;
  args.soft_cap = spec.soft_cap;
  args.workspace = buffers.workspace;
  return args;
}

LinearArgs output_of(const StackSpec& spec, const SelfAttentionWeights& weights,
                     const LayerBuffers& buffers, int64_t rows) {
  LinearArgs args;
  args.x = buffers.attention.context.first_rows(rows);
  args.x_scales.tensor = weights.context_scale;
  args.weight = weights.output;
  args.workspace = buffers.attention.linear_workspace;
  set_result(args, spec, buffers, rows);
  return args;
}

// The heads of queries, keys and values in buffers.qkv, normalised and rotated if the spec says so.
void project(const StackRun& run, const Block& block, const AttentionSpec& spec,
             const SelfAttentionWeights& weights) {
  LinearArgs projection = projection_of(weights, run.buffers, run.rows(run.buffers.attention.qkv));
  projection.x = block_input(run, block);
  projection.row_count = run.batch.counts;
  if (!spec.rope && !spec.qk_norm) return run_linear(run, block, LoraTarget::kQkv, projection);
  const AttentionArgs attention =
      attention_args(run.spec, spec, run.weights, run.buffers.attention, run.batch);
  RopeArgs args;
  args.q = attention.q;
  args.k = attention.k;
  args.num_heads = attention.num_heads;
  args.num_kv_heads = attention.num_kv_heads;
  args.head_dim = attention.head_dim;
  args.model_dim = static_cast<int32_t>(spec.head_dim);
  args.q_norm = weights.query_norm;
  args.k_norm = weights.key_norm;
  run.set_rotation(args, spec);
  args.row_count = run.batch.counts;
  if (!adapts(run, LoraTarget::kQkv)) return run.ops.qkv_rope(projection, args);
  run.ops.qkv_rope(projection, args,
                   lora_of(run, block, LoraTarget::kQkv, projection.x, projection.out));
}

// Projects the table of relative positions to the keys and the queries of a layer.
void build_relative_positions(const StackLoad& load, const AttentionSpec& spec,
                              const std::string& name, SelfAttentionWeights& weights) {
  const ScoreTermSpec& term = load.spec.score_term;
  const Spread rows =
      place_heads(spec, load.packer, spec.num_heads, 0, paired_columns(load.spec, load.packer));
  if (term.content_to_position) {
    const std::string from = term.shared_projections ? "key" : "position_key";
    weights.position_keys =
        load.relative->project(name + "position_keys", {name + from, rows, spec.key_bias});
  }
  if (term.position_to_content) {
    const std::string from = term.shared_projections ? "query" : "position_query";
    weights.position_queries =
        load.relative->project(name + "position_queries", {name + from, rows, spec.qkv_bias});
  }
}

}  // namespace

Spread place_heads(const AttentionSpec& spec, const LayerPacker& packer, int64_t count,
                   int64_t before, int64_t paired) {
  const int64_t stored = packer.padded(spec.head_dim);
  return {count * spec.head_dim, spec.head_dim, stored, before * stored, paired};
}

DenseLayout qkv_layout(const StackSpec& stack, const AttentionSpec& spec, const LayerPacker& packer,
                       int64_t set) {
  const std::string name = name_of_block(stack, set, "attention.");
  const int64_t paired = paired_columns(stack, packer);
  const int64_t queries = spec.num_heads;
  const int64_t keys = spec.num_kv_heads;
  const std::vector<Part> parts = {
      {name + "query", place_heads(spec, packer, queries, 0, paired), spec.qkv_bias},
      {name + "key", place_heads(spec, packer, keys, queries, paired), spec.key_bias},
      {name + "value", place_heads(spec, packer, keys, queries + keys), spec.qkv_bias}};
  const std::vector<std::string> names = {parts[0].name, parts[1].name, parts[2].name};
  return {name + "qkv",
          parts,
          (queries + 2 * keys) * packer.padded(spec.head_dim),
          whole(stack.hidden_size),
          packer.width(stack.hidden_size),
          {{names, name + "qkv"}, {names, name + "qkv_by_head", true}}};
}

DenseLayout attention_output_layout(const StackSpec& stack, const AttentionSpec& spec,
                                    const LayerPacker& packer, int64_t set) {
  const std::string name = name_of_block(stack, set, "attention.output");
  return {name,
          {{name, whole(stack.hidden_size), spec.output_bias}},
          packer.width(stack.hidden_size),
          place_heads(spec, packer, spec.num_heads, 0),
          spec.num_heads * packer.padded(spec.head_dim)};
}

SelfAttentionWeights build_attention(const StackLoad& load, const AttentionSpec& spec, int64_t set,
                                     const DenseLayout& qkv) {
  LayerPacker& packer = load.packer;
  const std::string name = name_of_block(load.spec, set, "attention.");
  const LinearFormat output = load.float8.output();
  SelfAttentionWeights weights;
  WeightSeen seen;
  if (output.weight == DType::kFloat8) {
    seen = [&](const float* weight, const float* bias) {
      const int64_t rows = spec.num_kv_heads * packer.padded(spec.head_dim);
      const int64_t first = qkv.out_features - rows;
      weights.context_scale =
          load.float8.attention_scale(set, weight + first * qkv.in_features, rows, qkv.in_features,
                                      bias == nullptr ? nullptr : bias + first);
    };
  }
  weights.qkv = packer.linear(qkv, packer.precision().layers, seen);
  weights.output = packer.linear(attention_output_layout(load.spec, spec, packer, set), output);
  build_relative_positions(load, spec, name, weights);
  if (load.spec.score_term.per_layer) {
    weights.bucket_bias = build_bucket_bias(load.spec, name + "relative_bias", packer);
  }
  if (spec.qk_norm) {
    const Spread head = {spec.head_dim, spec.head_dim, spec.head_dim, 0,
                         paired_columns(load.spec, packer)};
    weights.query_norm = packer.head_norm(name + "query_norm", head);
    weights.key_norm = packer.head_norm(name + "key_norm", head);
  }
  return weights;
}

void take_heads(const StackWeights& weights, const Capacity& capacity, Arena& arena,
                LayerBuffers& buffers) {
  const LinearWeight& qkv = attention_of(weights.layers.front().blocks.front())->qkv;
  buffers.attention.qkv =
      arena.take_matrix("qkv", capacity.max_tokens, qkv.out_features, buffers.hidden.dtype);
}

void take_attention(const StackSpec& spec, const StackWeights& weights, const Capacity& capacity,
                    int64_t max_seqlen, const Ops& ops, Arena& arena, LayerBuffers& buffers) {
  const int64_t tokens = capacity.max_tokens;
  const DType dtype = buffers.hidden.dtype;
  // All layers have the same shapes, but not all of their weights need have the same form.
  const SelfAttentionWeights& first = *attention_of(weights.layers.front().blocks.front());
  SelfAttentionBuffers& taken = buffers.attention;
  const bool float8 = first.output.dtype == DType::kFloat8;
  taken.context = arena.take_matrix("context", tokens, first.output.in_features,
                                    float8 ? DType::kFloat8 : dtype);
  BatchView batch;
  batch.num_tokens = tokens;
  batch.num_sequences = capacity.max_sequences;
  batch.max_seqlen = std::min(tokens, max_seqlen);
  AttentionArgs attention =
      attention_args(spec, spec.layers.front().attention(), weights, taken, batch);
  size_t attention_bytes = ops.attention_workspace(attention);
  if (capacity.max_kv_len > 0) {  // instead of keys of the batch itself
    attention.pages.keys = TensorView(nullptr, dtype, 0, attention.head_dim);
    attention.pages.values = attention.pages.keys;
    attention.pages.max_kv_len = capacity.max_kv_len;
    attention.pages.table_stride = ceil_div(capacity.max_kv_len, kPageTokens);
    attention_bytes = ops.paged_attention_workspace(attention);
  }
  taken.workspace = arena.take("attention_workspace", attention_bytes);
  size_t linear_bytes = 0;
  for (const LayerWeights& layer : weights.layers) {
    const SelfAttentionWeights& one = *attention_of(layer.blocks.front());
    linear_bytes =
        std::max({linear_bytes, ops.linear_workspace(projection_of(one, buffers, taken.qkv)),
                  ops.linear_workspace(output_of(spec, one, buffers, tokens))});
  }
  taken.linear_workspace = arena.take("linear_workspace", linear_bytes);
}

LinearArgs projection_of(const SelfAttentionWeights& weights, const LayerBuffers& buffers,
                         const TensorView& out) {
  LinearArgs args;
  set_input(args, weights.qkv, buffers, out.rows());
  args.weight = weights.qkv;
  args.out = out;
  args.workspace = buffers.attention.linear_workspace;
  return args;
}

void compute(const StackRun& run, const Block& block, const SelfAttentionWeights& weights) {
  project(run, block, *attention_of(block.spec), weights);
  attend(run, block, weights);
}

void attend(const StackRun& run, const Block& block, const SelfAttentionWeights& weights) {
  const AttentionSpec& spec = *attention_of(block.spec);
  AttentionArgs args =
      attention_args(run.spec, spec, run.weights, run.buffers.attention, run.batch);
  const Keys source = run.keys.keys(block.layer, {args.k, args.v, args.keys, {}});
  args.k = source.k;
  args.v = source.v;
  args.keys = source.batch;
  args.pages = source.pages;
  args.mask = mask_of(spec);
  args.term.position_keys = weights.position_keys;
  args.term.position_queries = weights.position_queries;
  args.term.grids = run.grids;
  if (run.spec.score_term.per_layer) static_cast<BucketBias&>(args.term) = weights.bucket_bias;
  // A quantised layer rounds the output of attention anyway. Inputs of 16 bits do so less than
  // bfloat16, but windows of audio are long, and models of speech are run in 16 bits.
  const bool hears = run.spec.stem.kind == StemKind::kAudio;
  args.rounded = hears ? is_quantized(weights.output) : weights.output.dtype == DType::kInt8;
  args.out_scale = weights.context_scale;
  run.ops.attention(args);
}

void add(const StackRun& run, const Block& block, const SelfAttentionWeights& weights) {
  LinearArgs output = output_of(run.spec, weights, run.buffers, run.batch.num_tokens);
  if (!run.spec.pre_norm()) set_norm(output, run, block.weights.norm, block.read);
  output.row_count = run.batch.counts;
  run_linear(run, block, LoraTarget::kOutput, output);
  add_result(run, block);
}

}  // namespace packhorse
