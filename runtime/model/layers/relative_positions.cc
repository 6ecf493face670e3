#include "model/layers/relative_positions.h"

#include <algorithm>
#include <vector>

#include "model/layers/positions.h"

namespace packhorse {

BucketBias build_bucket_bias(const StackSpec& spec, const std::string& name, LayerPacker& packer) {
  const ScoreTermSpec& term = spec.score_term;
  const int64_t heads = spec.layers.front().attention().num_heads;
  BucketBias bias;
  bias.table = packer.matrix(name, term.table_rows(), heads);
  if (!spec.layers.front().attention().causal) return bias;
  const int64_t distances = term.max_distance + 1;
  bias.by_distance = packer.array<float>(name + ".by_distance", heads * distances, [&] {
    const TensorReader& reader = *packer.reader();
    std::vector<float> table(static_cast<size_t>(term.num_buckets * heads));
    reader.read_rows(name, reader.require(name, term.num_buckets, heads), 0, term.num_buckets,
                     table.data());
    std::vector<float> values(static_cast<size_t>(heads * distances));
    for (int64_t distance = 0; distance < distances; ++distance) {
      const int64_t bucket = causal_bucket(distance, term.num_buckets, term.max_distance);
      for (int64_t head = 0; head < heads; ++head) {
        values[static_cast<size_t>((head + 1) * distances - 1 - distance)] =
            table[static_cast<size_t>(bucket * heads + head)];
      }
    }
    return values;
  });
  return bias;
}

RelativePositions::RelativePositions(const StackSpec& spec, LayerPacker& packer)
    : spec_(spec), packer_(packer) {
  if (packer.reader() == nullptr) return;
  const int64_t rows = spec.score_term.num_relative();
  const auto lay_out = [&](Arena& own, const TensorReader* reader) {
    return packer.over(own, reader)
        .table(spec.prefix + "relative_embeddings", rows, spec.hidden_size);
  };
  Arena counting(std::nullopt);
  lay_out(counting, nullptr);
  const PlannedAllocation plan = counting.plan();
  memory_ = packer.backend().device->allocate(plan.bytes);
  Arena carving(memory_->data(), plan);
  table_ = lay_out(carving, packer.reader());
  if (spec.score_term.norm) normalize();
}

void RelativePositions::normalize() {
  DeviceContext& device = *packer_.backend().device;
  const TensorReader& reader = *packer_.reader();
  const int64_t width = table_.columns();
  std::vector<float> parameters =
      reader.read_vector(spec_.prefix + "relative_norm.weight", spec_.hidden_size);
  const std::vector<float> beta =
      reader.read_vector(spec_.prefix + "relative_norm.bias", spec_.hidden_size);
  parameters.resize(static_cast<size_t>(2 * width));
  std::copy(beta.begin(), beta.end(), parameters.begin() + width);
  const auto memory = device.allocate(parameters.size() * sizeof(float));
  auto* data = static_cast<float*>(memory->data());
  device.upload(data, parameters.data(), parameters.size() * sizeof(float));
  NormWeight weight;
  weight.eps = spec_.norm.eps;
  weight.gamma = data;
  weight.beta = data + width;
  weight.padding = static_cast<int32_t>(width - spec_.hidden_size);
  packer_.backend().ops->norm({.x = table_, .residual = {}, .norm = weight, .out = table_});
  device.synchronize();
}

TensorView RelativePositions::project(const std::string& name, const Part& part) {
  const int64_t rows = spec_.score_term.num_relative();
  const int64_t columns = part.rows.extent / part.rows.size * part.rows.stride;
  const TensorView result =
      packer_.arena().take_matrix(name, rows, columns, packer_.precision().floats());
  if (packer_.reader() == nullptr) return result;
  DeviceContext& device = *packer_.backend().device;
  Ops& ops = *packer_.backend().ops;
  // They are multiplied here, once, in the dtype of the table.
  const Precision& precision = packer_.precision();
  const bool float8 = precision.layers.weight == DType::kFloat8;
  const auto lay_out = [&](Arena& own, const TensorReader* reader) {
    return packer_.over(own, reader)
        .linear({part.name,
                 {part},
                 columns,
                 whole(spec_.hidden_size),
                 packer_.width(spec_.hidden_size)},
                float8 ? precision.rest : precision.layers);
  };
  Arena counting(std::nullopt);
  lay_out(counting, nullptr);
  const PlannedAllocation plan = counting.plan();
  const auto memory = device.allocate(plan.bytes);
  Arena carving(memory->data(), plan);
  LinearArgs args;
  args.x = table_;
  args.weight = lay_out(carving, packer_.reader());
  args.out = result;
  const auto workspace = device.allocate(ops.linear_workspace(args));
  args.workspace = workspace->data();
  // A GEMM may start to read its weight while earlier kernels, such as those that pack it, still
  // run.
  device.synchronize();
  ops.linear(args);
  device.synchronize();
  return result;
}

}  // namespace packhorse
