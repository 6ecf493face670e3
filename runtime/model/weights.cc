#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/float_convert.h"
#include "core/format.h"
#include "model/tensor_reader.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

// How a matrix's rows or columns fall into heads, each to be padded from `size` to `padded`.
struct Heads {
  int64_t count;
  int64_t size;
  int64_t padded;
  int64_t source_extent() const { return count * size; }
  int64_t extent() const { return count * padded; }
};

Heads whole(int64_t extent) { return {1, extent, extent}; }

// A [rows, columns] matrix of the source that goes, padded, into a fused linear layer.
struct Part {
  std::string name;  // without ".weight" / ".bias"
  Heads rows;
};

/// Lays the model out over an arena; with a reader it also fills what it lays out. One routine for
/// both, so that the plan cannot depart from the load.
class WeightBuilder {
 public:
  WeightBuilder(const Spec& spec, DType dtype, Ops& ops, Arena& arena, const TensorReader* reader)
      : spec_(spec), dtype_(dtype), ops_(ops), arena_(arena), reader_(reader) {}

  void build(ModelWeights& weights) {
    const int64_t hidden_size = spec_.hidden_size;
    weights.word_table = table("embeddings.word", spec_.vocab_size);
    weights.position_table = table("embeddings.position", spec_.num_positions);
    if (spec_.type_vocab_size > 0) {
      weights.type_table = table("embeddings.type", spec_.type_vocab_size);
    }
    weights.embedding_norm = norm("embeddings.norm");
    const int64_t padded = padded_head_dim(spec_, ops_);
    const Heads query{spec_.num_heads, spec_.head_dim, padded};
    const Heads key_value{spec_.num_kv_heads, spec_.head_dim, padded};
    for (int64_t i = 0; i < spec_.num_layers; ++i) {
      const std::string attention = concat("layers.", i, ".attention.");
      const std::string feed_forward = concat("layers.", i, ".ffn.");
      LayerWeights layer;
      layer.qkv = linear(concat("layers.", i, ".attention.qkv"),
                         {{attention + "query", query},
                          {attention + "key", key_value},
                          {attention + "value", key_value}},
                         whole(hidden_size));
      layer.attention_output = linear(attention + "output", whole(hidden_size), query);
      layer.attention_norm = norm(attention + "norm");
      layer.up = linear(feed_forward + "up", whole(spec_.intermediate_size), whole(hidden_size));
      layer.down =
          linear(feed_forward + "down", whole(hidden_size), whole(spec_.intermediate_size));
      layer.feed_forward_norm = norm(feed_forward + "norm");
      weights.layers.push_back(layer);
    }
    if (spec_.pooler) weights.pooler = linear("pooler", whole(hidden_size), whole(hidden_size));
  }

 private:
  TensorView table(const std::string& name, int64_t rows) {
    const int64_t columns = spec_.hidden_size;
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

  const float* vector(const std::string& name, const std::vector<Part>& parts) {
    int64_t size = 0;
    for (const Part& part : parts) size += part.rows.extent();
    auto* data = arena_.take_array<float>(name, static_cast<size_t>(size));
    if (reader_ == nullptr) return data;
    std::vector<float> values;
    for (const Part& part : parts) {
      const std::vector<float> source = reader_->read_vector(part.name, part.rows.source_extent());
      for (int64_t head = 0; head < part.rows.count; ++head) {
        const auto begin = source.begin() + head * part.rows.size;
        values.insert(values.end(), begin, begin + part.rows.size);
        values.resize(values.size() + static_cast<size_t>(part.rows.padded - part.rows.size));
      }
    }
    ops_.upload(data, values.data(), values.size() * sizeof(float));
    return data;
  }

  NormWeight norm(const std::string& name) {
    NormWeight result;
    result.kind = spec_.norm_kind;
    result.eps = spec_.norm_eps;
    result.gamma = vector(name + ".weight", {{name + ".weight", whole(spec_.hidden_size)}});
    result.beta = vector(name + ".bias", {{name + ".bias", whole(spec_.hidden_size)}});
    return result;
  }

  LinearWeight linear(const std::string& name, Heads rows, Heads columns) {
    return linear(name, {{name, rows}}, columns);
  }

  LinearWeight linear(const std::string& name, const std::vector<Part>& parts, Heads columns) {
    LinearWeight result;
    result.dtype = dtype_;
    result.in_features = columns.extent();
    for (const Part& part : parts) result.out_features += part.rows.extent();
    void* packed = arena_.take(name + ".weight",
                               ops_.linear_bytes(result.in_features, result.out_features, dtype_));
    result.data = packed;
    std::vector<Part> biases;
    for (const Part& part : parts) biases.push_back({part.name + ".bias", part.rows});
    result.bias = vector(name + ".bias", biases);
    if (reader_ == nullptr) return result;

    staging_.assign(static_cast<size_t>(result.in_features * result.out_features), 0.0f);
    float* to = staging_.data();
    for (const Part& part : parts) to = place(part, columns, to);
    ops_.pack_linear(staging_.data(), result.in_features, result.out_features, dtype_, packed);
    return result;
  }

  // Copies one part into the fused matrix, leaving the zeros of padded heads. Returns its end.
  float* place(const Part& part, Heads columns, float* to) {
    const std::string name = part.name + ".weight";
    const TensorView source =
        reader_->require(name, part.rows.source_extent(), columns.source_extent());
    std::vector<float> values(static_cast<size_t>(part.rows.size * columns.source_extent()));
    for (int64_t head = 0; head < part.rows.count; ++head) {
      reader_->read_rows(name, source, head * part.rows.size, part.rows.size, values.data());
      check_range(name, values.data(), values.size());
      const float* from = values.data();
      float* row = to + head * part.rows.padded * columns.extent();
      for (int64_t i = 0; i < part.rows.size; ++i, row += columns.extent()) {
        for (int64_t c = 0; c < columns.count; ++c, from += columns.size) {
          std::copy_n(from, columns.size, row + c * columns.padded);
        }
      }
    }
    return to + part.rows.extent() * columns.extent();
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
};

}  // namespace

int64_t padded_head_dim(const Spec& spec, const Ops& ops) {
  const int64_t multiple = ops.head_dim_multiple();
  return (spec.head_dim + multiple - 1) / multiple * multiple;
}

PlannedAllocation plan_weights(const Spec& spec, DType dtype, Ops& ops,
                               std::optional<size_t> limit) {
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
