#include "model/weights.h"

#include <string>

#include "core/float_convert.h"
#include "core/format.h"
#include "model/head_weights.h"
#include "model/layer_packer.h"
#include "model/positions.h"
#include "model/tensor_reader.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

int64_t round_up(int64_t size, int64_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

void check_supported(const Spec& spec, const Ops& ops) {
  const auto require = [&](bool wanted, Feature feature, const char* what) {
    if (!wanted || ops.supports(feature)) return;
    throw RuntimeError(
        concat("spec: ", what, " is not supported on ", name_of(ops.device()), ": use cpu"));
  };
  require(spec.stack.feed_forward.gated, Feature::kGatedFeedForward, "'ffn.kind' \"gated\"");
  require(spec.stack.attention.rope.has_value(), Feature::kRotateHeads, "'attention.rope'");
  require(spec.stack.attention.disentangled(), Feature::kDisentangled,
          "'attention.score_term.kind' \"disentangled\"");
  require(spec.stack.convolution.width > 0, Feature::kNeighbours, "'convolution'");
  require(spec.stack.attention.qk_norm, Feature::kRotateHeads, "'attention.qk_norm'");
  const auto check_width = [&](const char* name, int64_t width) {
    if (width % ops.width_multiple() == 0) return;
    throw InvalidArgument(concat("spec: '", name, "' is ", width, ", ", name_of(ops.device()),
                                 " needs multiples of ", ops.width_multiple(), ": use cpu"));
  };
  check_width("hidden_size", spec.hidden_size);
  check_width("embedding_size", spec.stem.embedding_size);
}

/// Lays the model out over an arena; with a reader it also fills what it lays out. One routine for
/// both, so that the plan cannot depart from the load.
class WeightBuilder : LayerPacker {
 public:
  WeightBuilder(const Spec& spec, DType dtype, Ops& ops, Arena& arena, const TensorReader* reader)
      : LayerPacker(dtype, ops, arena, reader), spec_(spec) {}

  void build(ModelWeights& weights) {
    build_embeddings(weights);
    build_positions(weights);
    for (int64_t i = 0; i < spec_.stack.num_weight_sets(); ++i) {
      LayerWeights layer;
      build_attention(layer, i);
      build_feed_forward(layer, concat("layers.", i, ".ffn."));
      weights.layers.push_back(layer);
    }
    if (spec_.stack.convolution.width > 0) {
      weights.convolution =
          convolution("convolution", spec_.hidden_size, spec_.stack.convolution.width);
      weights.convolution_norm = norm("convolution.norm", spec_.hidden_size);
    }
    if (spec_.stack.pre_norm()) weights.final_norm = norm("final_norm", spec_.hidden_size);
    build_heads(spec_, *this, weights);
  }

 private:
  void build_embeddings(ModelWeights& weights) {
    weights.word_table = table("embeddings.word", spec_.stem.vocab_size, spec_.stem.embedding_size);
    if (spec_.stem.position_kind == PositionKind::kLearned) {
      weights.position_table =
          table("embeddings.position", spec_.stem.num_positions, spec_.stem.embedding_size);
    }
    if (spec_.stem.type_vocab_size > 0) {
      weights.type_table =
          table("embeddings.type", spec_.stem.type_vocab_size, spec_.stem.embedding_size);
    }
    if (spec_.stem.norm) {
      weights.embedding_norm = norm("embeddings.norm", spec_.stem.embedding_size);
    }
    if (spec_.stem.projection) {
      weights.embedding_projection =
          dense("embeddings.projection", spec_.hidden_size, spec_.stem.embedding_size);
    }
  }

  // What attention needs to know about distances.
  void build_positions(ModelWeights& weights) {
    weights.score_term.kind = spec_.stack.attention.score_term.kind;
    if (spec_.stack.attention.score_term.kind == ScoreTermKind::kAlibi) {
      weights.score_term.slopes =
          constants("alibi_slopes", alibi_slopes(spec_.stack.attention.num_heads));
    }
    if (spec_.stack.attention.score_term.kind == ScoreTermKind::kBucketed) {
      weights.score_term.table =
          matrix("relative_bias", spec_.stack.attention.score_term.num_buckets,
                 spec_.stack.attention.num_heads);
      weights.score_term.num_buckets =
          static_cast<int32_t>(spec_.stack.attention.score_term.num_buckets);
      weights.score_term.max_distance =
          static_cast<int32_t>(spec_.stack.attention.score_term.max_distance);
    }
    if (spec_.stack.attention.disentangled()) {
      const RelativeSlots relative = relative_slots(spec_.stack.attention.score_term.num_buckets,
                                                    spec_.stack.attention.score_term.max_distance);
      weights.score_term.slots = constants("relative_slots", relative.slots);
      weights.score_term.slot_limit = relative.limit;
      load_relative_table();
    }
    if (!spec_.stack.attention.rope) return;
    const RopeSpec& rope = *spec_.stack.attention.rope;
    weights.rope_frequencies =
        constants("rope_frequencies", rope.frequencies.empty()
                                          ? rope_frequencies(rope.theta, rope.dims, rope.factor)
                                          : rope.frequencies);
    weights.local_rope_frequencies = weights.rope_frequencies;
    if (rope.local_theta != rope.theta) {
      weights.local_rope_frequencies = constants(
          "local_rope_frequencies", rope_frequencies(rope.local_theta, rope.dims, rope.factor));
    }
  }

  void build_attention(LayerWeights& layer, int64_t index) {
    const std::string name = concat("layers.", index, ".attention.");
    const int64_t padded = padded_head_dim(spec_, ops_);
    const auto heads = [&](int64_t count, int64_t before, int64_t paired = 0) {
      return Spread{count * spec_.stack.attention.head_dim, spec_.stack.attention.head_dim, padded,
                    before * padded, paired};
    };
    const int64_t paired = paired_columns();
    const int64_t queries = spec_.stack.attention.num_heads;
    const int64_t keys = spec_.stack.attention.num_kv_heads;
    const std::vector<Part> parts = {
        {name + "query", heads(queries, 0, paired), spec_.stack.attention.qkv_bias},
        {name + "key", heads(keys, queries, paired), spec_.stack.attention.key_bias},
        {name + "value", heads(keys, queries + keys), spec_.stack.attention.qkv_bias}};
    const std::vector<std::string> names = {parts[0].name, parts[1].name, parts[2].name};
    layer.qkv =
        linear(name + "qkv", parts, (queries + 2 * keys) * padded, whole(spec_.hidden_size),
               spec_.hidden_size, {{names, name + "qkv"}, {names, name + "qkv_by_head", true}});
    layer.attention_output =
        linear(name + "output",
               {{name + "output", whole(spec_.hidden_size), spec_.stack.attention.output_bias}},
               spec_.hidden_size, heads(queries, 0), queries * padded);
    if (spec_.stack.attention.score_term.content_to_position) {
      const std::string from =
          spec_.stack.attention.score_term.shared_projections ? "key" : "position_key";
      layer.position_keys = projected_positions(
          name + "position_keys",
          {name + from, heads(queries, 0, paired), spec_.stack.attention.key_bias});
    }
    if (spec_.stack.attention.score_term.position_to_content) {
      const std::string from =
          spec_.stack.attention.score_term.shared_projections ? "query" : "position_query";
      layer.position_queries = projected_positions(
          name + "position_queries",
          {name + from, heads(queries, 0, paired), spec_.stack.attention.qkv_bias});
    }
    if (!spec_.stack.pre_norm() || spec_.stack.first_attention_norm || index > 0) {
      layer.attention_norm = norm(name + "norm", spec_.hidden_size);
    }
    if (spec_.stack.attention.qk_norm) {
      layer.query_norm = head_norm(name + "query_norm");
      layer.key_norm = head_norm(name + "key_norm");
    }
  }

  void build_feed_forward(LayerWeights& layer, const std::string& name) {
    const int64_t inner = spec_.stack.feed_forward.size;
    const int64_t padded = padded_intermediate_size(spec_, ops_);
    if (spec_.stack.feed_forward.gated) {
      const Spread gate = {inner, kGateBlock, 2 * kGateBlock, 0};
      const Spread up = {inner, kGateBlock, 2 * kGateBlock, kGateBlock};
      layer.up = linear(name + "up",
                        {{name + "gate", gate, spec_.stack.feed_forward.up_bias},
                         {name + "up", up, spec_.stack.feed_forward.up_bias}},
                        2 * padded, whole(spec_.hidden_size), spec_.hidden_size,
                        {{{name + "gate", name + "up"}, name + "gate_up"},
                         {{name + "up", name + "gate"}, name + "up_gate"}});
    } else {
      layer.up =
          linear(name + "up", {{name + "up", whole(inner), spec_.stack.feed_forward.up_bias}},
                 padded, whole(spec_.hidden_size), spec_.hidden_size);
    }
    layer.down =
        linear(name + "down",
               {{name + "down", whole(spec_.hidden_size), spec_.stack.feed_forward.down_bias}},
               spec_.hidden_size, whole(inner), padded);
    layer.feed_forward_norm = norm(name + "norm", spec_.hidden_size);
  }

  NormWeight norm(const std::string& name, int64_t size) {
    return LayerPacker::norm(name, size, spec_.norm.kind, spec_.norm.eps, spec_.norm.bias);
  }

  NormWeight head_norm(const std::string& name) {
    NormWeight result;
    result.kind = NormKind::kRms;
    result.eps = spec_.norm.eps;
    const Spread head{spec_.stack.attention.head_dim, spec_.stack.attention.head_dim,
                      spec_.stack.attention.head_dim, 0, paired_columns()};
    result.gamma = spread_vector(name + ".weight", head);
    return result;
  }

  // Columns of a head of queries or keys whose halves lie in turn.
  int64_t paired_columns() const {
    return spec_.stack.attention.rope && ops_.interleaves_heads() ? spec_.stack.attention.rope->dims
                                                                  : 0;
  }

  LinearWeight dense(const std::string& name, int64_t out_features, int64_t in_features) {
    return linear(name, {{name, whole(out_features), true}}, out_features, whole(in_features),
                  in_features);
  }

  // Positions that are projected by every layer: memory of the load alone.
  void load_relative_table() {
    if (reader_ == nullptr) return;
    const int64_t rows = spec_.stack.attention.score_term.num_relative();
    const int64_t hidden_size = spec_.hidden_size;
    const std::string name = "relative_embeddings";
    std::vector<float> values(static_cast<size_t>(rows * hidden_size));
    const TensorView source = reader_->require(name, rows, hidden_size);
    reader_->read_rows(name, source, 0, rows, values.data());
    check_range(name, values.data(), values.size());
    relative_memory_ = ops_.allocate(values.size() * size_of(dtype_));
    relative_ = TensorView(relative_memory_->data(), dtype_, rows, hidden_size);
    std::vector<char> converted(values.size() * size_of(dtype_));
    from_float32(values.data(), dtype_, converted.data(), values.size());
    ops_.upload(relative_.data, converted.data(), converted.size());
    if (!spec_.stack.attention.score_term.norm) return;
    std::vector<float> parameters = reader_->read_vector("relative_norm.weight", hidden_size);
    const std::vector<float> beta = reader_->read_vector("relative_norm.bias", hidden_size);
    parameters.insert(parameters.end(), beta.begin(), beta.end());
    const auto memory = ops_.allocate(parameters.size() * sizeof(float));
    auto* data = static_cast<float*>(memory->data());
    ops_.upload(data, parameters.data(), parameters.size() * sizeof(float));
    NormWeight weight;
    weight.eps = spec_.norm.eps;
    weight.gamma = data;
    weight.beta = data + hidden_size;
    ops_.norm({.x = relative_, .residual = {}, .norm = weight, .out = relative_});
    ops_.synchronize();
  }

  // [num_relative, H d]: the table of positions through one dense layer.
  TensorView projected_positions(const std::string& name, const Part& part) {
    const int64_t rows = spec_.stack.attention.score_term.num_relative();
    const int64_t columns = spec_.stack.attention.num_heads * part.rows.stride;
    const size_t bytes = static_cast<size_t>(rows * columns) * size_of(dtype_);
    const TensorView result(arena_.take(name, bytes), dtype_, rows, columns);
    if (reader_ == nullptr) return result;
    Arena counting(std::nullopt);
    const auto lay_out = [&](Arena& arena, const TensorReader* reader) {
      return LayerPacker(block_dtype_, ops_, arena, reader)
          .linear(part.name, {part}, columns, whole(spec_.hidden_size), spec_.hidden_size);
    };
    lay_out(counting, nullptr);
    const PlannedAllocation plan = counting.plan();
    const auto memory = ops_.allocate(plan.bytes);
    Arena carving(memory->data(), plan);
    const LinearWeight weight = lay_out(carving, reader_);
    const auto workspace =
        ops_.allocate(ops_.linear_workspace(rows, spec_.hidden_size, columns, block_dtype_));
    // A GEMM may read its weight while kernels before it, here that of the packing, still run.
    ops_.synchronize();
    ops_.linear({.x = relative_,
                 .weight = weight,
                 .residual = {},
                 .norm = {},
                 .out = result,
                 .workspace = workspace->data()});
    ops_.synchronize();
    return result;
  }

  const Spec& spec_;
  std::unique_ptr<DeviceMemory> relative_memory_;
  TensorView relative_;  // [num_relative, hidden_size]
};

}  // namespace

int64_t padded_head_dim(const Spec& spec, const Ops& ops) {
  return round_up(spec.stack.attention.head_dim, ops.head_dim_multiple());
}

int64_t padded_features(int64_t features, const Ops& ops) {
  return round_up(features, ops.head_dim_multiple());
}

std::vector<int64_t> dense_columns(int64_t size, const std::vector<DenseSpec>& layers,
                                   const Ops& ops) {
  std::vector<int64_t> columns = {size};
  for (const DenseSpec& layer : layers) {
    const bool same = layer.residual && layer.size == size;
    columns.push_back(same ? columns.back() : padded_features(layer.size, ops));
    size = layer.size;
  }
  return columns;
}

int64_t padded_intermediate_size(const Spec& spec, const Ops& ops) {
  return round_up(spec.stack.feed_forward.size,
                  spec.stack.feed_forward.gated ? kGateBlock : ops.width_multiple());
}

PlannedAllocation plan_weights(const Spec& spec, DType dtype, Ops& ops) {
  check_supported(spec, ops);
  Arena arena;
  ModelWeights unused;
  WeightBuilder(spec, dtype, ops, arena, nullptr).build(unused);
  return arena.plan();
}

std::shared_ptr<const ModelWeights> load_weights(const Spec& spec, DType dtype, Ops& ops,
                                                 const PlannedAllocation& plan,
                                                 const WeightSource& source) {
  auto weights = std::make_shared<ModelWeights>();
  weights->plan = plan;
  weights->memory = ops.allocate(plan.bytes);
  Arena arena(weights->memory->data(), plan);
  const TensorReader reader(source);
  WeightBuilder(spec, dtype, ops, arena, &reader).build(*weights);
  ops.synchronize();
  return weights;
}

}  // namespace packhorse
