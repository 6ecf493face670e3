#include "model/loading/float8_layers.h"

#include <algorithm>
#include <cmath>

#include "core/float8.h"
#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

// The factor that rounding adds to a bound: both factors of a product may grow by 2^-4.
constexpr float kRounding = 1.15f;

// Numbers so large that their products have no bound come of a broken checkpoint.
void check_bound(float bound, const std::string& norm) {
  if (std::isfinite(bound)) return;
  throw InvalidArgument(concat("dtype float8: what the block behind the norm ", norm,
                               " may give has no bound in float32 (it is ", bound,
                               "); expected weights whose products are finite"));
}

}  // namespace

std::vector<float> largest_outputs(const float* weight, int64_t rows, int64_t columns,
                                   const float* bias, const NormedRows& normed) {
  const size_t size = normed.gamma.size();
  const float length = std::sqrt(static_cast<float>(size));
  std::vector<float> largest(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row, weight += columns) {
    // Several sums at once, which the compiler keeps in a vector.
    constexpr size_t kSums = 16;
    float squares[kSums] = {};
    float shifts[kSums] = {};
    for (size_t i = 0; i < size; ++i) {
      const float product = weight[i] * normed.gamma[i];
      squares[i % kSums] += product * product;
      shifts[i % kSums] += weight[i] * normed.beta[i];
    }
    float square = 0;
    float shift = bias == nullptr ? 0 : bias[row];
    for (const float sum : squares) square += sum;
    for (const float sum : shifts) shift += sum;
    largest[static_cast<size_t>(row)] = length * std::sqrt(square) + std::abs(shift);
  }
  return largest;
}

float float8_scale(float bound) { return std::max(kRounding * bound, kFloat8Least) / kFloat8Most; }

Float8Layers::Float8Layers(const StackSpec& spec, const LayerPacker& packer)
    : spec_(spec), packer_(packer) {
  if (packer.precision().layers.weight != DType::kFloat8) return;
  const Ops& ops = *packer.backend().ops;
  if (spec.has<CcaSpec>() || spec.has<MoeSpec>()) {
    throw RuntimeError(concat("dtype float8: models with ",
                              spec.has<CcaSpec>() ? "compressed attention" : "mixtures of experts",
                              " do not run in it; load it as float16 or bfloat16"));
  }
  const int64_t width = packer.width(spec.hidden_size);
  const int64_t head_dim =
      spec.layers.empty() ? 0 : packer.padded(spec.layers.front().attention().head_dim);
  if (!ops.quantizes_rows(width)) {
    throw RuntimeError(concat("dtype float8: this device does not quantise rows of ", width,
                              " columns, as this model has; load it as float16 or bfloat16"));
  }
  ScoreTerm term;
  term.kind = spec.score_term.kind;
  term.num_buckets = static_cast<int32_t>(spec.score_term.num_buckets);
  term.max_distance = static_cast<int32_t>(spec.score_term.max_distance);
  output_ = ops.attention_writes_float8(head_dim, term);
  for (size_t i = 0; i < spec.layers.size(); ++i) output_ &= norm_before(i).has_value();
}

std::optional<std::string> Float8Layers::norm_before(size_t position) const {
  const bool embeds = spec_.stem.norm && !spec_.stem.projection;
  const auto of_embeddings =
      embeds ? std::optional<std::string>(spec_.prefix + "embeddings.norm") : std::nullopt;
  const LayerSpec& layer = spec_.layers[position];
  if (spec_.pre_norm()) {
    if (layer.blocks.front().norm == BlockNorm::kOwn) {
      return concat(spec_.prefix, "layers.", layer.weights, ".attention.norm");
    }
    return position == 0 ? of_embeddings : std::nullopt;
  }
  if (position == 0) return of_embeddings;
  if (position == 1 && spec_.convolution.width > 0) return spec_.prefix + "convolution.norm";
  return concat(spec_.prefix, "layers.", spec_.layers[position - 1].weights, ".ffn.norm");
}

std::vector<float> Float8Layers::largest(const std::string& norm, const float* weight, int64_t rows,
                                         int64_t columns, const float* bias) const {
  std::vector<float> outputs =
      largest_outputs(weight, rows, columns, bias, packer_.normed_rows(norm, spec_.hidden_size));
  for (const float output : outputs) check_bound(output, norm);
  return outputs;
}

float Float8Layers::attention_scale(int64_t index, const float* values, int64_t rows,
                                    int64_t columns, const float* bias) const {
  std::vector<std::string> norms;  // norms before all layers that have these weights
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    if (spec_.layers[i].weights != index) continue;
    const std::string norm = norm_before(i).value();
    if (std::find(norms.begin(), norms.end(), norm) == norms.end()) norms.push_back(norm);
  }
  float bound = 0;
  for (const std::string& norm : norms) {
    const std::vector<float> outputs = largest(norm, values, rows, columns, bias);
    bound = std::max(bound, *std::max_element(outputs.begin(), outputs.end()));
  }
  return float8_scale(bound);
}

float Float8Layers::inner_scale(int64_t index, const float* up, int64_t rows, int64_t columns,
                                const float* bias) const {
  const BlockSpec& block = spec_.weight_sets()[static_cast<size_t>(index)]->blocks.back();
  const bool shared = !spec_.pre_norm() || block.norm == BlockNorm::kShared;
  const std::string norm =
      concat(spec_.prefix, "layers.", index, shared ? ".attention.norm" : ".ffn.norm");
  const std::vector<float> outputs = largest(norm, up, rows, columns, bias);
  float bound = 1;  // covers activations that are not below |x|
  if (!std::get<FeedForwardSpec>(block.kind).gated) {
    bound = std::max(bound, *std::max_element(outputs.begin(), outputs.end()));
  } else {
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (i / kGateBlock % 2 != 0) continue;
      bound = std::max(bound, std::max(outputs[i], 1.0f) * outputs[i + kGateBlock]);
    }
    check_bound(bound, norm);
  }
  return float8_scale(bound);
}

}  // namespace packhorse
