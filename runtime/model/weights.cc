#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/float_convert.h"
#include "core/format.h"
#include "model/positions.h"
#include "model/tensor_reader.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

void check_supported(const Spec& spec, const Ops& ops) {
  const auto require = [&](bool wanted, Feature feature, const char* what) {
    if (!wanted || ops.supports(feature)) return;
    throw RuntimeError(
        concat("spec: ", what, " is not supported on ", name_of(ops.device()), ": use cpu"));
  };
  require(spec.gated(), Feature::kGatedFeedForward, "'ffn.kind' \"gated\"");
  require(spec.rope.has_value(), Feature::kRotateHeads, "'attention.rope'");
  require(spec.disentangled(), Feature::kDisentangled,
          "'attention.score_term.kind' \"disentangled\"");
  require(spec.convolution_width > 0, Feature::kNeighbours, "'convolution'");
  require(spec.qk_norm, Feature::kRotateHeads, "'attention.qk_norm'");
}

// How the rows or columns of a matrix are spread: groups of `size`, `stride` apart, the first at
// `offset`. Heads are padded so, and gate and up lie in turn.
struct Spread {
  int64_t extent;  // in the source
  int64_t size;
  int64_t stride;
  int64_t offset = 0;
};

Spread whole(int64_t extent) { return {extent, extent, extent}; }

// Rows of a matrix of the source that go into a layer.
struct Part {
  std::string name;  // without ".weight" / ".bias"
  Spread rows;
  bool bias;
};

// A tensor of the source that may hold several parts, one after the other, or head by head.
struct Stack {
  std::vector<std::string> names;  // of what it holds
  std::string name;
  bool by_head = false;
};

/// Lays the model out over an arena; with a reader it also fills what it lays out. One routine for
/// both, so that the plan cannot depart from the load.
class WeightBuilder {
 public:
  WeightBuilder(const Spec& spec, DType dtype, Ops& ops, Arena& arena, const TensorReader* reader)
      : spec_(spec), dtype_(dtype), ops_(ops), arena_(arena), reader_(reader) {}

  void build(ModelWeights& weights) {
    build_embeddings(weights);
    build_positions(weights);
    for (int64_t i = 0; i < spec_.num_weight_sets(); ++i) {
      LayerWeights layer;
      build_attention(layer, i);
      build_feed_forward(layer, concat("layers.", i, ".ffn."));
      weights.layers.push_back(layer);
    }
    if (spec_.convolution_width > 0) {
      weights.convolution = convolution("convolution");
      weights.convolution_norm = norm("convolution.norm", spec_.hidden_size);
    }
    if (spec_.pre_norm()) weights.final_norm = norm("final_norm", spec_.hidden_size);
    if (spec_.pooler) {
      weights.pooler = linear("pooler", whole(spec_.hidden_size), whole(spec_.hidden_size));
    }
  }

 private:
  void build_embeddings(ModelWeights& weights) {
    weights.word_table = table("embeddings.word", spec_.vocab_size);
    if (spec_.position_kind == PositionKind::kLearned) {
      weights.position_table = table("embeddings.position", spec_.num_positions);
    }
    if (spec_.type_vocab_size > 0) {
      weights.type_table = table("embeddings.type", spec_.type_vocab_size);
    }
    if (spec_.embedding_norm) {
      weights.embedding_norm = norm("embeddings.norm", spec_.embedding_size);
    }
    if (spec_.embedding_projection) {
      weights.embedding_projection =
          linear("embeddings.projection", whole(spec_.hidden_size), whole(spec_.embedding_size));
    }
  }

  // What attention needs to know about distances.
  void build_positions(ModelWeights& weights) {
    weights.score_term.kind = spec_.score_term;
    if (spec_.score_term == ScoreTermKind::kAlibi) {
      weights.score_term.slopes = constants("alibi_slopes", alibi_slopes(spec_.num_heads));
    }
    if (spec_.score_term == ScoreTermKind::kBucketed) {
      weights.score_term.table = bucket_table("relative_bias");
      weights.score_term.num_buckets = static_cast<int32_t>(spec_.num_buckets);
      weights.score_term.max_distance = static_cast<int32_t>(spec_.max_distance);
    }
    if (spec_.disentangled()) {
      const RelativeSlots relative = relative_slots(spec_.num_buckets, spec_.max_distance);
      weights.score_term.slots = constants("relative_slots", relative.slots);
      weights.score_term.slot_limit = relative.limit;
      load_relative_table();
    }
    if (!spec_.rope) return;
    const RopeSpec& rope = *spec_.rope;
    weights.rope_frequencies =
        constants("rope_frequencies", rope_frequencies(rope.theta, rope.dims, rope.factor));
    weights.local_rope_frequencies = weights.rope_frequencies;
    if (rope.local_theta != rope.theta) {
      weights.local_rope_frequencies = constants(
          "local_rope_frequencies", rope_frequencies(rope.local_theta, rope.dims, rope.factor));
    }
  }

  void build_attention(LayerWeights& layer, int64_t index) {
    const std::string name = concat("layers.", index, ".attention.");
    const int64_t padded = padded_head_dim(spec_, ops_);
    const auto heads = [&](int64_t count, int64_t before) {
      return Spread{count * spec_.head_dim, spec_.head_dim, padded, before * padded};
    };
    const int64_t queries = spec_.num_heads;
    const int64_t keys = spec_.num_kv_heads;
    const std::vector<Part> parts = {{name + "query", heads(queries, 0), spec_.qkv_bias},
                                     {name + "key", heads(keys, queries), spec_.key_bias},
                                     {name + "value", heads(keys, queries + keys), spec_.qkv_bias}};
    const std::vector<std::string> names = {parts[0].name, parts[1].name, parts[2].name};
    layer.qkv =
        linear(name + "qkv", parts, (queries + 2 * keys) * padded, whole(spec_.hidden_size),
               spec_.hidden_size, {{names, name + "qkv"}, {names, name + "qkv_by_head", true}});
    layer.attention_output = linear(
        name + "output", {{name + "output", whole(spec_.hidden_size), spec_.attention_output_bias}},
        spec_.hidden_size, heads(queries, 0), queries * padded);
    if (spec_.content_to_position) {
      const std::string from = spec_.shared_projections ? "key" : "position_key";
      layer.position_keys = projected_positions(name + "position_keys",
                                                {name + from, heads(queries, 0), spec_.key_bias});
    }
    if (spec_.position_to_content) {
      const std::string from = spec_.shared_projections ? "query" : "position_query";
      layer.position_queries = projected_positions(
          name + "position_queries", {name + from, heads(queries, 0), spec_.qkv_bias});
    }
    if (!spec_.pre_norm() || spec_.first_attention_norm || index > 0) {
      layer.attention_norm = norm(name + "norm", spec_.hidden_size);
    }
    if (spec_.qk_norm) {
      layer.query_norm = head_norm(name + "query_norm");
      layer.key_norm = head_norm(name + "key_norm");
    }
  }

  void build_feed_forward(LayerWeights& layer, const std::string& name) {
    const int64_t inner = spec_.intermediate_size;
    const int64_t padded = padded_intermediate_size(spec_);
    if (spec_.gated()) {
      const Spread gate = {inner, kGateBlock, 2 * kGateBlock, 0};
      const Spread up = {inner, kGateBlock, 2 * kGateBlock, kGateBlock};
      layer.up = linear(name + "up",
                        {{name + "gate", gate, spec_.up_bias}, {name + "up", up, spec_.up_bias}},
                        2 * padded, whole(spec_.hidden_size), spec_.hidden_size,
                        {{{name + "gate", name + "up"}, name + "gate_up"},
                         {{name + "up", name + "gate"}, name + "up_gate"}});
    } else {
      layer.up = linear(name + "up", {{name + "up", whole(inner), spec_.up_bias}}, inner,
                        whole(spec_.hidden_size), spec_.hidden_size);
    }
    layer.down = linear(name + "down", {{name + "down", whole(spec_.hidden_size), spec_.down_bias}},
                        spec_.hidden_size, whole(inner), padded);
    layer.feed_forward_norm = norm(name + "norm", spec_.hidden_size);
  }

  TensorView table(const std::string& name, int64_t rows) {
    const int64_t columns = spec_.embedding_size;
    const size_t row_bytes = static_cast<size_t>(columns) * size_of(dtype_);
    TensorView result(arena_.take(name, static_cast<size_t>(rows) * row_bytes), dtype_, rows,
                      columns);
    if (reader_ == nullptr) return result;
    const TensorView source = reader_->require(name, rows, columns);
    // In pieces, so that a large vocabulary is never held twice.
    const int64_t piece = std::max<int64_t>(1, (int64_t{1} << 18) / columns);
    std::vector<float> values(static_cast<size_t>(piece * columns));
    std::vector<char> converted(static_cast<size_t>(piece) * row_bytes);
    for (int64_t row = 0; row < rows; row += piece) {
      const int64_t count = std::min(piece, rows - row);
      const size_t elements = static_cast<size_t>(count * columns);
      reader_->read_rows(name, source, row, count, values.data());
      check_range(name, values.data(), elements);
      from_float32(values.data(), dtype_, converted.data(), elements);
      ops_.upload(result.as<char>() + static_cast<size_t>(row) * row_bytes, converted.data(),
                  elements * size_of(dtype_));
    }
    return result;
  }

  template <class T>
  const T* constants(const std::string& name, const std::vector<T>& values) {
    auto* data = arena_.take_array<T>(name, values.size());
    if (reader_ != nullptr) ops_.upload(data, values.data(), values.size() * sizeof(T));
    return data;
  }

  // Positions that are projected by every layer: memory of the load alone.
  void load_relative_table() {
    if (reader_ == nullptr) return;
    const int64_t rows = spec_.num_relative();
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
    if (!spec_.relative_norm) return;
    std::vector<float> parameters = reader_->read_vector("relative_norm.weight", hidden_size);
    const std::vector<float> beta = reader_->read_vector("relative_norm.bias", hidden_size);
    parameters.insert(parameters.end(), beta.begin(), beta.end());
    const auto memory = ops_.allocate(parameters.size() * sizeof(float));
    auto* data = static_cast<float*>(memory->data());
    ops_.upload(data, parameters.data(), parameters.size() * sizeof(float));
    NormWeight weight;
    weight.eps = spec_.norm_eps;
    weight.gamma = data;
    weight.beta = data + hidden_size;
    ops_.norm({.x = relative_, .residual = {}, .norm = weight, .out = relative_});
    ops_.synchronize();
  }

  // [num_relative, H d]: the table of positions through one dense layer.
  TensorView projected_positions(const std::string& name, const Part& part) {
    const int64_t rows = spec_.num_relative();
    const int64_t columns = spec_.num_heads * part.rows.stride;
    const size_t bytes = static_cast<size_t>(rows * columns) * size_of(dtype_);
    const TensorView result(arena_.take(name, bytes), dtype_, rows, columns);
    if (reader_ == nullptr) return result;
    Arena counting(std::nullopt);
    const auto lay_out = [&](Arena& arena, const TensorReader* reader) {
      WeightBuilder builder(spec_, dtype_, ops_, arena, reader);
      return builder.linear(part.name, {part}, columns, whole(spec_.hidden_size),
                            spec_.hidden_size);
    };
    lay_out(counting, nullptr);
    const PlannedAllocation plan = counting.plan();
    const auto memory = ops_.allocate(plan.bytes);
    Arena carving(memory->data(), plan);
    const LinearWeight weight = lay_out(carving, reader_);
    const auto workspace =
        ops_.allocate(ops_.linear_workspace(rows, spec_.hidden_size, columns, dtype_));
    ops_.linear({.x = relative_,
                 .weight = weight,
                 .residual = {},
                 .norm = {},
                 .out = result,
                 .workspace = workspace->data()});
    ops_.synchronize();
    return result;
  }

  const float* vector(const std::string& name, int64_t size) {
    return constants(name, reader_ != nullptr ? reader_->read_vector(name, size)
                                              : std::vector<float>(static_cast<size_t>(size)));
  }

  const float* bucket_table(const std::string& name) {
    std::vector<float> values(static_cast<size_t>(spec_.num_buckets * spec_.num_heads));
    if (reader_ != nullptr) {
      const TensorView source = reader_->require(name, spec_.num_buckets, spec_.num_heads);
      reader_->read_rows(name, source, 0, spec_.num_buckets, values.data());
    }
    return constants(name, values);
  }

  NormWeight norm(const std::string& name, int64_t size) {
    NormWeight result;
    result.kind = spec_.norm_kind;
    result.eps = spec_.norm_eps;
    result.gamma = vector(name + ".weight", size);
    if (spec_.norm_bias) result.beta = vector(name + ".bias", size);
    return result;
  }

  NormWeight head_norm(const std::string& name) {
    NormWeight result;
    result.kind = NormKind::kRms;
    result.eps = spec_.norm_eps;
    result.gamma = vector(name + ".weight", spec_.head_dim);
    return result;
  }

  LinearWeight linear(const std::string& name, Spread rows, Spread columns) {
    return linear(name, {{name, rows, true}}, rows.extent, columns, columns.extent);
  }

  // One layer of several parts. The source may hold them apart, or as one of `stacks`.
  LinearWeight linear(const std::string& name, const std::vector<Part>& parts, int64_t out_features,
                      Spread columns, int64_t in_features, const std::vector<Stack>& stacks = {}) {
    LinearWeight result;
    result.dtype = dtype_;
    result.in_features = in_features;
    result.out_features = out_features;
    void* packed =
        arena_.take(name + ".weight", ops_.linear_bytes(in_features, out_features, dtype_));
    result.data = packed;
    if (reader_ != nullptr) {
      staging_.assign(static_cast<size_t>(in_features * out_features), 0.0f);
      for (const Part& part : parts) {
        place(locate(part, parts, stacks, ".weight"), part.rows, columns, in_features,
              staging_.data());
      }
      ops_.pack_linear(staging_.data(), in_features, out_features, dtype_, packed);
    }
    if (std::none_of(parts.begin(), parts.end(), [](const Part& part) { return part.bias; })) {
      return result;
    }
    std::vector<float> values(static_cast<size_t>(out_features));
    for (const Part& part : parts) {
      if (reader_ == nullptr || !part.bias) continue;
      place(locate(part, parts, stacks, ".bias"), part.rows, {}, 1, values.data());
    }
    result.bias = constants(name + ".bias", values);
    return result;
  }

  // A convolution as a dense layer over neighbouring rows: [E, E, width] of the source, turned.
  LinearWeight convolution(const std::string& name) {
    const int64_t hidden_size = spec_.hidden_size;
    const int64_t width = spec_.convolution_width;
    LinearWeight result;
    result.dtype = dtype_;
    result.in_features = width * hidden_size;
    result.out_features = hidden_size;
    void* packed =
        arena_.take(name + ".weight", ops_.linear_bytes(result.in_features, hidden_size, dtype_));
    result.data = packed;
    result.bias = vector(name + ".bias", hidden_size);
    if (reader_ == nullptr) return result;
    const TensorView source = reader_->require(name + ".weight", hidden_size, hidden_size, width);
    std::vector<float> row(static_cast<size_t>(result.in_features));
    staging_.clear();
    for (int64_t out = 0; out < hidden_size; ++out) {
      reader_->read_rows(name + ".weight", source, out, 1, row.data());
      check_range(name + ".weight", row.data(), row.size());
      for (int64_t at = 0; at < width; ++at) {
        for (int64_t in = 0; in < hidden_size; ++in) {
          staging_.push_back(row[static_cast<size_t>(in * width + at)]);
        }
      }
    }
    ops_.pack_linear(staging_.data(), result.in_features, hidden_size, dtype_, packed);
    return result;
  }

  // Where a part lies in the source: a tensor of so many rows, the part's first, and how far apart
  // its groups begin.
  struct Location {
    std::string name;
    int64_t rows;
    int64_t first;
    int64_t step;
  };

  Location locate(const Part& part, const std::vector<Part>& parts,
                  const std::vector<Stack>& stacks, const char* suffix) const {
    for (const Stack& stack : stacks) {
      if (!reader_->has(stack.name + suffix)) continue;
      Location found = {stack.name + suffix, 0, 0, part.rows.size};
      for (const std::string& held : stack.names) {
        const auto other = std::find_if(parts.begin(), parts.end(),
                                        [&](const Part& one) { return one.name == held; });
        if (held == part.name) found.first = found.rows;
        found.rows += other->rows.extent;
      }
      if (stack.by_head) {
        found.first = found.first / part.rows.extent * part.rows.size;
        found.step = part.rows.size * static_cast<int64_t>(stack.names.size());
      }
      return found;
    }
    return {part.name + suffix, part.rows.extent, 0, part.rows.size};
  }

  // Spreads rows of the source over a matrix of `row_length` columns, leaving what lies between.
  // Without columns: over a vector.
  void place(const Location& from, const Spread& rows, const Spread& columns, int64_t row_length,
             float* to) {
    const TensorView source = reader_->require(from.name, from.rows, columns.extent);
    const int64_t width = std::max<int64_t>(1, columns.extent);
    std::vector<float> values(static_cast<size_t>(rows.size * width));
    for (int64_t begin = 0; begin < rows.extent; begin += rows.size) {
      const int64_t count = std::min(rows.size, rows.extent - begin);
      reader_->read_rows(from.name, source, from.first + begin / rows.size * from.step, count,
                         values.data());
      if (columns.extent > 0) {
        check_range(from.name, values.data(), static_cast<size_t>(count * width));
      }
      float* row = to + (rows.offset + begin / rows.size * rows.stride) * row_length;
      const float* value = values.data();
      for (int64_t i = 0; i < count; ++i, row += row_length) {
        if (columns.extent == 0) {
          *row = *value++;
          continue;
        }
        for (int64_t c = 0; c < columns.extent; c += columns.size, value += columns.size) {
          std::copy_n(value, columns.size, row + c / columns.size * columns.stride);
        }
      }
    }
  }

  // Only float16 has a smaller range than the formats weights are stored in.
  void check_range(const std::string& name, const float* values, size_t count) const {
    if (dtype_ != DType::kFloat16) return;
    const float* found = std::find_if(values, values + count,
                                      [](float value) { return std::abs(value) > 65504.0f; });
    if (found != values + count) {
      throw InvalidArgument(concat("weights: tensor '", name, "' holds ", *found,
                                   ", beyond float16's 65504; load it as bfloat16"));
    }
  }

  const Spec& spec_;
  const DType dtype_;
  Ops& ops_;
  Arena& arena_;
  const TensorReader* reader_;
  std::vector<float> staging_;
  std::unique_ptr<DeviceMemory> relative_memory_;
  TensorView relative_;  // [num_relative, hidden_size]
};

}  // namespace

int64_t padded_head_dim(const Spec& spec, const Ops& ops) {
  const int64_t multiple = ops.head_dim_multiple();
  return (spec.head_dim + multiple - 1) / multiple * multiple;
}

int64_t padded_intermediate_size(const Spec& spec) {
  if (!spec.gated()) return spec.intermediate_size;
  return (spec.intermediate_size + kGateBlock - 1) / kGateBlock * kGateBlock;
}

PlannedAllocation plan_weights(const Spec& spec, DType dtype, Ops& ops,
                               std::optional<size_t> limit) {
  check_supported(spec, ops);
  Arena arena(limit);
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
