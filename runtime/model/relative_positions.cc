#include "model/relative_positions.h"

#include <vector>

#include "core/float_convert.h"

namespace packhorse {

RelativePositions::RelativePositions(const Spec& spec, LayerPacker& packer)
    : spec_(spec), packer_(packer) {
  if (packer.reader() == nullptr) return;
  const int64_t rows = spec.stack.attention.score_term.num_relative();
  const DType dtype = packer.precision().floats();
  const std::vector<float> values =
      packer.read_matrix("relative_embeddings", rows, spec.hidden_size);
  packer.check_range("relative_embeddings", values.data(), values.size());
  std::vector<char> converted(values.size() * size_of(dtype));
  from_float32(values.data(), dtype, converted.data(), values.size());
  DeviceContext& device = *packer.backend().device;
  memory_ = device.allocate(converted.size());
  table_ = TensorView(memory_->data(), dtype, rows, spec.hidden_size);
  device.upload(table_.data, converted.data(), converted.size());
  if (spec.stack.attention.score_term.norm) normalize();
}

void RelativePositions::normalize() {
  DeviceContext& device = *packer_.backend().device;
  const TensorReader& reader = *packer_.reader();
  std::vector<float> parameters = reader.read_vector("relative_norm.weight", spec_.hidden_size);
  const std::vector<float> beta = reader.read_vector("relative_norm.bias", spec_.hidden_size);
  parameters.insert(parameters.end(), beta.begin(), beta.end());
  const auto memory = device.allocate(parameters.size() * sizeof(float));
  auto* data = static_cast<float*>(memory->data());
  device.upload(data, parameters.data(), parameters.size() * sizeof(float));
  NormWeight weight;
  weight.eps = spec_.norm.eps;
  weight.gamma = data;
  weight.beta = data + spec_.hidden_size;
  packer_.backend().ops->norm({.x = table_, .residual = {}, .norm = weight, .out = table_});
  device.synchronize();
}

TensorView RelativePositions::project(const std::string& name, const Part& part) {
  const int64_t rows = spec_.stack.attention.score_term.num_relative();
  const int64_t columns = spec_.stack.attention.num_heads * part.rows.stride;
  const TensorView result =
      packer_.arena().take_matrix(name, rows, columns, packer_.precision().floats());
  if (packer_.reader() == nullptr) return result;
  DeviceContext& device = *packer_.backend().device;
  Ops& ops = *packer_.backend().ops;
  const auto lay_out = [&](Arena& own, const TensorReader* reader) {
    return packer_.over(own, reader)
        .linear(part.name, {part}, columns, whole(spec_.hidden_size), spec_.hidden_size,
                packer_.precision().layers);
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
