#include "model/layers/stack_weights.h"

#include <memory>
#include <string>

#include "core/format.h"
#include "model/layers/relative_positions.h"
#include "model/loading/float8_layers.h"
#include "model/loading/stack_layouts.h"
#include "model/stem/positions.h"

namespace packhorse {
namespace {

class StackBuilder {
 public:
  StackBuilder(const Spec& spec, LayerPacker& packer)
      : spec_(spec),
        attention_(spec.stack.attention),
        packer_(packer),
        layouts_(spec, packer),
        float8_(spec, packer) {}

  StackWeights build() {
    StackWeights weights;
    weights.width = layouts_.width();
    weights.head_dim = layouts_.head_dim();
    build_positions(weights);
    if (spec_.stack.residual_scales) {
      weights.scales.output_scale = packer_.vector("embeddings.scale", spec_.hidden_size);
      weights.scales.output_shift = packer_.vector("embeddings.shift", spec_.hidden_size);
    }
    for (int64_t i = 0; i < spec_.stack.num_weight_sets(); ++i) {
      LayerWeights layer;
      build_attention(layer, i);
      build_feed_forward(layer, i);
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

  LinearWeight linear(const DenseLayout& layout, const LinearFormat& format,
                      const WeightSeen& seen = {}) {
    return packer_.linear(layout.name, layout.parts, layout.out_features, layout.columns,
                          layout.in_features, format, layout.fused, seen);
  }

  void build_attention(LayerWeights& layer, int64_t index) {
    AttentionWeights& weights = layer.attention;
    const std::string name = concat("layers.", index, ".attention.");
    build_projections(weights, index);
    build_relative_positions(weights, name);
    if (attention_.compression) {
      weights.convolutions = build_cca(attention_, layouts_, name, packer_);
    }
    layer.attention_scales = build_scales(name);
    if (!spec_.stack.pre_norm() || spec_.stack.first_attention_norm || index > 0) {
      layer.attention_norm = packer_.norm(name + "norm", spec_.hidden_size);
    }
    if (spec_.stack.output_norms()) {
      layer.attention_output_norm = packer_.norm(name + "output_norm", spec_.hidden_size);
    }
    if (attention_.qk_norm) {
      const int64_t head_dim = attention_.head_dim;
      const Spread head = {head_dim, head_dim, head_dim, 0, layouts_.paired_columns()};
      weights.query_norm = packer_.head_norm(name + "query_norm", head);
      weights.key_norm = packer_.head_norm(name + "key_norm", head);
    }
  }

  void build_projections(AttentionWeights& weights, int64_t index) {
    const LinearFormat output = float8_.output();
    const DenseLayout qkv = layouts_.qkv(index);
    WeightSeen seen;
    if (output.weight == DType::kFloat8) {
      seen = [&](const float* weight, const float* bias) {
        const int64_t rows = attention_.num_kv_heads * layouts_.head_dim();
        const int64_t first = qkv.out_features - rows;
        weights.context_scale =
            float8_.attention_scale(index, weight + first * qkv.in_features, rows, qkv.in_features,
                                    bias == nullptr ? nullptr : bias + first);
      };
    }
    weights.qkv = linear(qkv, packer_.precision().layers, seen);
    weights.output = linear(layouts_.output(index), output);
  }

  void build_relative_positions(AttentionWeights& weights, const std::string& name) {
    const ScoreTermSpec& term = attention_.score_term;
    const Spread rows = layouts_.heads(attention_.num_heads, 0, layouts_.paired_columns());
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

  ResidualScales build_scales(const std::string& name) {
    if (!spec_.stack.residual_scales) return {};
    const auto vector = [&](const char* part) {
      return packer_.vector(name + part, spec_.hidden_size);
    };
    return {vector("output_shift"), vector("output_scale"), vector("residual_shift"),
            vector("residual_scale")};
  }

  void build_feed_forward(LayerWeights& layer, int64_t index) {
    const std::string name = concat("layers.", index, ".ffn.");
    layer.feed_forward_scales = build_scales(name);
    if (spec_.stack.feed_forward.moe) {
      layer.moe = build_moe(spec_, index, layouts_, packer_);
    } else {
      build_dense_block(layer.feed_forward, index);
    }
    if (!spec_.stack.shared_norm) {
      layer.feed_forward_norm = packer_.norm(name + "norm", spec_.hidden_size);
    }
    if (spec_.stack.output_norms()) {
      layer.feed_forward_output_norm = packer_.norm(name + "output_norm", spec_.hidden_size);
    }
  }

  void build_dense_block(FeedForwardWeights& weights, int64_t index) {
    const LinearFormat format = packer_.precision().layers;
    const DenseLayout up = layouts_.up(index);
    WeightSeen seen;
    if (format.weight == DType::kFloat8) {
      seen = [&](const float* weight, const float* bias) {
        weights.inner_scale =
            float8_.inner_scale(index, weight, up.out_features, up.in_features, bias);
      };
    }
    weights.up = linear(up, format, seen);
    weights.down = linear(layouts_.down(index), format);
  }

  const Spec& spec_;
  const AttentionSpec& attention_;
  LayerPacker& packer_;
  const StackLayouts layouts_;
  const Float8Layers float8_;
  std::unique_ptr<RelativePositions> relative_;
};

}  // namespace

StackWeights build_stack(const Spec& spec, LayerPacker& packer) {
  return StackBuilder(spec, packer).build();
}

}  // namespace packhorse
