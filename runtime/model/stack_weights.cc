#include "model/stack_weights.h"

#include <memory>
#include <string>

#include "core/format.h"
#include "model/positions.h"
#include "model/relative_positions.h"

namespace packhorse {
namespace {

class StackBuilder {
 public:
  StackBuilder(const Spec& spec, LayerPacker& packer)
      : spec_(spec),
        attention_(spec.stack.attention),
        packer_(packer),
        width_(packer.width(spec.hidden_size)),
        head_dim_(packer.padded(attention_.head_dim)) {}

  StackWeights build() {
    StackWeights weights;
    weights.width = width_;
    weights.head_dim = head_dim_;
    build_positions(weights);
    for (int64_t i = 0; i < spec_.stack.num_weight_sets(); ++i) {
      LayerWeights layer;
      build_attention(layer, i);
      build_feed_forward(layer, concat("layers.", i, ".ffn."));
      weights.layers.push_back(layer);
    }
    if (spec_.stack.convolution.width > 0) {
      weights.convolution =
          packer_.convolution("convolution", spec_.hidden_size, spec_.stack.convolution.width);
      weights.convolution_norm = packer_.norm("convolution.norm", spec_.hidden_size);
    }
    if (spec_.stack.pre_norm()) weights.final_norm = packer_.norm("final_norm", spec_.hidden_size);
    return weights;
  }

 private:
  // Builds what attention needs to know about positions and distances.
  void build_positions(StackWeights& weights) {
    const ScoreTermSpec& term = attention_.score_term;
    weights.score_term.kind = term.kind;
    if (term.kind == ScoreTermKind::kAlibi) {
      weights.score_term.slopes =
          packer_.constants("alibi_slopes", alibi_slopes(attention_.num_heads));
    }
    if (term.kind == ScoreTermKind::kBucketed) {
      weights.score_term.table =
          packer_.matrix("relative_bias", term.num_buckets, attention_.num_heads);
      weights.score_term.num_buckets = static_cast<int32_t>(term.num_buckets);
      weights.score_term.max_distance = static_cast<int32_t>(term.max_distance);
    }
    if (attention_.disentangled()) {
      const RelativeSlots relative = relative_slots(term.num_buckets, term.max_distance);
      weights.score_term.slots = packer_.constants("relative_slots", relative.slots);
      weights.score_term.slot_limit = relative.limit;
      relative_ = std::make_unique<RelativePositions>(spec_, packer_);
    }
    if (!attention_.rope) return;
    const RopeSpec& rope = *attention_.rope;
    weights.rope_frequencies = packer_.constants(
        "rope_frequencies", rope.frequencies.empty()
                                ? rope_frequencies(rope.theta, rope.dims, rope.factor)
                                : rope.frequencies);
    weights.local_rope_frequencies = weights.rope_frequencies;
    if (attention_.has_local_theta()) {
      weights.local_rope_frequencies =
          packer_.constants("local_rope_frequencies",
                            rope_frequencies(rope.local_theta, rope.dims, rope.local_factor));
    }
  }

  // The rows or columns of `count` heads of the source, placed after `before` other heads.
  Spread heads(int64_t count, int64_t before, int64_t paired = 0) const {
    return {count * attention_.head_dim, attention_.head_dim, head_dim_, before * head_dim_,
            paired};
  }

  // Spread::paired of a head of queries or keys: columns that are rotated together lie side by side
  // or in two halves, in the source as its model was trained, in memory as the device's kernels
  // rotate them.
  int64_t paired_columns() const {
    if (!attention_.rope) return 0;
    const bool device = packer_.backend().ops->interleaves_heads();
    if (device == attention_.rope->interleaved) return 0;
    return device ? attention_.rope->dims : -attention_.rope->dims;
  }

  void build_attention(LayerWeights& layer, int64_t index) {
    AttentionWeights& weights = layer.attention;
    const std::string name = concat("layers.", index, ".attention.");
    const LinearFormat& format = packer_.precision().layers;
    const int64_t paired = paired_columns();
    const int64_t queries = attention_.num_heads;
    const int64_t keys = attention_.num_kv_heads;
    const std::vector<Part> parts = {
        {name + "query", heads(queries, 0, paired), attention_.qkv_bias},
        {name + "key", heads(keys, queries, paired), attention_.key_bias},
        {name + "value", heads(keys, queries + keys), attention_.qkv_bias}};
    const std::vector<std::string> names = {parts[0].name, parts[1].name, parts[2].name};
    weights.qkv = packer_.linear(name + "qkv", parts, (queries + 2 * keys) * head_dim_,
                                 whole(spec_.hidden_size), width_, format,
                                 {{names, name + "qkv"}, {names, name + "qkv_by_head", true}});
    weights.output = packer_.linear(
        name + "output", {{name + "output", whole(spec_.hidden_size), attention_.output_bias}},
        width_, heads(queries, 0), queries * head_dim_, format);
    build_relative_positions(weights, name);
    if (!spec_.stack.pre_norm() || spec_.stack.first_attention_norm || index > 0) {
      layer.attention_norm = packer_.norm(name + "norm", spec_.hidden_size);
    }
    if (spec_.stack.output_norms()) {
      layer.attention_output_norm = packer_.norm(name + "output_norm", spec_.hidden_size);
    }
    if (attention_.qk_norm) {
      const int64_t head_dim = attention_.head_dim;
      const Spread head = {head_dim, head_dim, head_dim, 0, paired};
      weights.query_norm = packer_.head_norm(name + "query_norm", head);
      weights.key_norm = packer_.head_norm(name + "key_norm", head);
    }
  }

  void build_relative_positions(AttentionWeights& weights, const std::string& name) {
    const ScoreTermSpec& term = attention_.score_term;
    const Spread rows = heads(attention_.num_heads, 0, paired_columns());
    if (term.content_to_position) {
      const std::string from = term.shared_projections ? "key" : "position_key";
      weights.position_keys =
          relative_->project(name + "position_keys", {name + from, rows, attention_.key_bias});
    }
    if (term.position_to_content) {
      const std::string from = term.shared_projections ? "query" : "position_query";
      weights.position_queries =
          relative_->project(name + "position_queries", {name + from, rows, attention_.qkv_bias});
    }
  }

  void build_feed_forward(LayerWeights& layer, const std::string& name) {
    const FeedForwardSpec& spec = spec_.stack.feed_forward;
    const LinearFormat& format = packer_.precision().layers;
    const int64_t hidden_size = spec_.hidden_size;
    const int64_t multiple = spec.gated ? kGateBlock : packer_.backend().ops->width_multiple();
    const int64_t padded = (spec.size + multiple - 1) / multiple * multiple;
    if (spec.gated) {
      const Spread gate = {spec.size, kGateBlock, 2 * kGateBlock, 0};
      const Spread up = {spec.size, kGateBlock, 2 * kGateBlock, kGateBlock};
      layer.feed_forward.up = packer_.linear(
          name + "up", {{name + "gate", gate, spec.up_bias}, {name + "up", up, spec.up_bias}},
          2 * padded, whole(hidden_size), width_, format,
          {{{name + "gate", name + "up"}, name + "gate_up"},
           {{name + "up", name + "gate"}, name + "up_gate"}});
    } else {
      layer.feed_forward.up =
          packer_.linear(name + "up", {{name + "up", whole(spec.size), spec.up_bias}}, padded,
                         whole(hidden_size), width_, format);
    }
    layer.feed_forward.down =
        packer_.linear(name + "down", {{name + "down", whole(hidden_size), spec.down_bias}}, width_,
                       whole(spec.size), padded, format);
    if (!spec_.stack.shared_norm) {
      layer.feed_forward_norm = packer_.norm(name + "norm", hidden_size);
    }
    if (spec_.stack.output_norms()) {
      layer.feed_forward_output_norm = packer_.norm(name + "output_norm", hidden_size);
    }
  }

  const Spec& spec_;
  const AttentionSpec& attention_;
  LayerPacker& packer_;
  const int64_t width_;     // of hidden states, as stored
  const int64_t head_dim_;  // as stored, padded
  std::unique_ptr<RelativePositions> relative_;
};

}  // namespace

StackWeights build_stack(const Spec& spec, LayerPacker& packer) {
  return StackBuilder(spec, packer).build();
}

}  // namespace packhorse
