#include "model/heads/dense_layers.h"

#include <algorithm>

#include "core/format.h"

namespace packhorse {

std::vector<DenseWeights> build_dense_layers(const std::vector<DenseSpec>& layers, Spread input,
                                             int64_t columns,
                                             const std::function<std::string(size_t)>& name_of,
                                             LayerPacker& packer) {
  std::vector<DenseWeights> result;
  for (size_t i = 0; i < layers.size(); ++i) {
    const DenseSpec& layer = layers[i];
    const bool same_size = layer.size == input.extent;
    const bool together = input.extent == input.size || input.size == input.stride;
    const int64_t out_columns =
        layer.residual && same_size && together ? columns : packer.padded(layer.size);
    const auto build = [&](const std::string& name, bool bias) {
      return packer.linear({name, {{name, whole(layer.size), bias}}, out_columns, input, columns},
                           packer.precision().rest);
    };
    DenseWeights built = {build(name_of(i), layer.bias), {}};
    if (layer.residual && !same_size) built.residual = build(name_of(i) + ".residual", false);
    if (layer.residual && same_size && !together) {
      built.residual = packer.gathering(name_of(i) + ".input", input, columns);
    }
    result.push_back(built);
    input = whole(layer.size);
    columns = out_columns;
  }
  return result;
}

DenseBuffers take_dense_layers(const std::vector<DenseWeights>& weights, int64_t rows,
                               const std::string& name, const HeadArena& arena) {
  DenseBuffers buffers;
  size_t bytes = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const LinearWeight& layer = weights[i].layer;
    buffers.layers.push_back(arena.matrix(concat(name, "_dense_", i), rows, layer.out_features));
    bytes = std::max(bytes, arena.workspace_of(rows, layer));
  }
  buffers.workspace = arena.workspace(name + "_dense_workspace", bytes);
  return buffers;
}

TensorView run_dense_layers(const HeadRun& run, TensorView x, const std::vector<DenseSpec>& layers,
                            const std::vector<DenseWeights>& weights, const DenseBuffers& buffers) {
  for (size_t i = 0; i < layers.size(); ++i) {
    const TensorView to = buffers.layers[i].first_rows(x.rows());
    TensorView residual;
    if (weights[i].residual) {
      run.dense(x, *weights[i].residual, to, buffers.workspace);
      residual = to;
    } else if (layers[i].residual) {
      residual = x;
    }
    run.dense(x, weights[i].layer, to, buffers.workspace, layers[i].activation, {}, residual);
    x = to;
  }
  return x;
}

}  // namespace packhorse
