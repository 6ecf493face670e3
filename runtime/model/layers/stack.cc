#include "model/layers/stack.h"

#include "model/layers/positions.h"
#include "model/layers/rope.h"
#include "model/layers/stack_load.h"

namespace packhorse {
namespace {

// Tables by which attention knows distances.
ScoreTerm build_score_term(StackLoad& load) {
  const ScoreTermSpec& spec = load.spec.score_term;
  ScoreTerm term;
  term.kind = spec.kind;
  if (load.spec.layers.empty()) return term;
  const int64_t num_heads = load.spec.layers.front().attention().num_heads;
  if (spec.kind == ScoreTermKind::kAlibi) {
    term.slopes = load.packer.constants(load.spec.prefix + "alibi_slopes", alibi_slopes(num_heads));
  }
  if (spec.kind == ScoreTermKind::kBucketed) {
    term.num_buckets = static_cast<int32_t>(spec.num_buckets);
    term.max_distance = static_cast<int32_t>(spec.max_distance);
    term.bidirectional = !load.spec.layers.front().attention().causal;
  }
  if (spec.kind == ScoreTermKind::kGrid) {
    term.grid_rows = static_cast<int32_t>(spec.grid_rows);
    term.grid_columns = static_cast<int32_t>(spec.grid_columns);
  }
  if (spec.has_table() && !spec.per_layer) {
    static_cast<BucketBias&>(term) =
        build_bucket_bias(load.spec, load.spec.prefix + "relative_bias", load.packer);
  }
  if (spec.disentangled()) {
    const RelativeSlots relative = relative_slots(spec.num_buckets, spec.max_distance);
    term.slots = load.packer.constants(load.spec.prefix + "relative_slots", relative.slots);
    term.slot_limit = relative.limit;
    load.relative = std::make_unique<RelativePositions>(load.spec, load.packer);
  }
  return term;
}

ResidualScales build_scales(const StackLoad& load, const std::string& name) {
  if (!load.spec.residual_scales) return {};
  const auto vector = [&](const char* part) {
    return load.packer.vector(name + part, load.spec.hidden_size);
  };
  return {vector("output_shift"), vector("output_scale"), vector("residual_shift"),
          vector("residual_scale")};
}

BlockWeights build_block(const StackLoad& load, const BlockSpec& spec, int64_t set) {
  BlockWeights weights;
  if (const auto* attention = std::get_if<SelfAttentionSpec>(&spec.kind)) {
    weights.kind =
        build_attention(load, *attention, set, qkv_layout(load.spec, *attention, load.packer, set));
  } else if (const auto* cross = std::get_if<CrossAttentionSpec>(&spec.kind)) {
    weights.kind = build_cross_attention(load, *cross, set);
  } else if (const auto* cca = std::get_if<CcaSpec>(&spec.kind)) {
    weights.kind = build_cca(load, *cca, set);
  } else if (const auto* moe = std::get_if<MoeSpec>(&spec.kind)) {
    weights.kind = build_moe(load, *moe, set);
  } else {
    weights.kind = build_feed_forward(load, std::get<FeedForwardSpec>(spec.kind), set);
  }
  const std::string name = name_of_block(load.spec, set, part_of(spec)) + ".";
  weights.scales = build_scales(load, name);
  if (spec.norm == BlockNorm::kOwn) {
    weights.norm = load.packer.norm(name + "norm", load.spec.hidden_size);
  }
  if (load.spec.output_norms()) {
    weights.output_norm = load.packer.norm(name + "output_norm", load.spec.hidden_size);
  }
  return weights;
}

}  // namespace

StackWeights build_stack(const StackSpec& spec, LayerPacker& packer, const StackSpec* source) {
  StackLoad load{.spec = spec,
                 .source = source,
                 .packer = packer,
                 .float8 = Float8Layers(spec, packer),
                 .relative = nullptr};
  StackWeights weights;
  weights.width = packer.width(spec.hidden_size);
  weights.score_term = build_score_term(load);
  weights.rope_frequencies = build_ropes(spec, packer);
  if (spec.residual_scales) {
    weights.scales.output_scale = packer.vector(spec.prefix + "embeddings.scale", spec.hidden_size);
    weights.scales.output_shift = packer.vector(spec.prefix + "embeddings.shift", spec.hidden_size);
  }
  for (const LayerSpec* layer : spec.weight_sets()) {
    const auto set = static_cast<int64_t>(weights.layers.size());
    LayerWeights built;
    for (const BlockSpec& block : layer->blocks) {
      built.blocks.push_back(build_block(load, block, set));
    }
    weights.layers.push_back(std::move(built));
  }
  if (!spec.layers.empty()) {
    weights.head_dim = packer.padded(spec.layers.front().attention().head_dim);
    const SelfAttentionWeights& first = *attention_of(weights.layers.front().blocks.front());
    weights.float8 = first.qkv.dtype == DType::kFloat8;
  }
  weights.convolution = build_convolution(spec, packer);
  if (spec.pre_norm() && spec.final_norm)
    weights.final_norm = packer.norm(spec.prefix + "final_norm", spec.hidden_size);
  return weights;
}

LayerBuffers take_layer_buffers(const StackSpec& spec, const StackWeights& weights,
                                const Capacity& capacity, DType dtype, const Ops& ops,
                                Arena& arena) {
  const int64_t tokens = capacity.max_tokens;
  LayerBuffers buffers;
  buffers.hidden = arena.take_matrix("hidden", tokens, weights.width, dtype);
  if (spec.pre_norm()) buffers.normed = arena.take_matrix("normed", tokens, weights.width, dtype);
  if (weights.float8) {
    buffers.quantized.values =
        arena.take_matrix("quantized", tokens, weights.width, DType::kFloat8);
    buffers.quantized.scales =
        arena.take_array<float>("quantized_scales", static_cast<size_t>(tokens));
  }
  if (const AdapterCapacity& adapters = capacity.adapters; adapters.max_adapters > 0) {
    constexpr int64_t kMostParts = 3;  // queries, keys and values
    buffers.adapted_ranks = arena.take_array<float>(
        "adapted_ranks", static_cast<size_t>(tokens * kMostParts * adapters.max_rank));
  }
  take_moe_state(spec, weights, tokens, arena, buffers);
  buffers.rotations = take_rotations(spec, tokens, ops, arena);
  take_convolution(weights.convolution, tokens, ops, arena, buffers);
  return buffers;
}

void take_block_buffers(const StackSpec& stack, const StackWeights& weights,
                        const Capacity& capacity, const Ops& ops, Arena& arena,
                        LayerBuffers& buffers) {
  if (stack.layers.empty()) return;
  {
    const Arena::Scope attention(arena);
    take_heads(weights, capacity, arena, buffers);
    if (stack.has<CcaSpec>()) {
      take_cca(stack, weights, capacity, stack.max_seqlen, ops, arena, buffers);
    }
    take_attention(stack, weights, capacity, stack.max_seqlen, ops, arena, buffers);
  }
  if (stack.has<CrossAttentionSpec>()) {
    const Arena::Scope cross(arena);
    take_cross_attention(stack, weights, capacity, ops, arena, buffers);
  }
  if (stack.has<MoeSpec>()) {
    const Arena::Scope moe(arena);
    take_moe(stack, weights, capacity.max_tokens, ops, arena, buffers);
  }
  if (stack.has<FeedForwardSpec>()) {
    take_feed_forward(stack, weights, capacity, ops, arena, buffers);
  }
}

}  // namespace packhorse
