// A sequence of dense layers, each of which takes the output of the one before. The embedding head
// and the vectors head use it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/heads/head_run.h"
#include "model/loading/layer_packer.h"
#include "model/spec/spec.h"

namespace packhorse {

/// The weights of one DenseSpec. Output features are padded, except if the layer adds its unchanged
/// input, whose columns they then match.
struct DenseWeights {
  LinearWeight layer;
  /// Applied to the input if sizes differ, or if the input's columns lie apart.
  std::optional<LinearWeight> residual;
};

struct DenseBuffers {
  std::vector<TensorView> layers;  // [rows, padded size] output of each layer
  void* workspace = nullptr;
};

/// `input` says how the features of the input lie in rows of `columns`; `name_of(i)` is the name of
/// layer i in the source.
std::vector<DenseWeights> build_dense_layers(const std::vector<DenseSpec>& layers, Spread input,
                                             int64_t columns,
                                             const std::function<std::string(size_t)>& name_of,
                                             LayerPacker& packer);
DenseBuffers take_dense_layers(const std::vector<DenseWeights>& weights, int64_t rows,
                               const std::string& name, const HeadArena& arena);
/// Returns the output of the last layer, or `x` if there are no layers.
TensorView run_dense_layers(const HeadRun& run, TensorView x, const std::vector<DenseSpec>& layers,
                            const std::vector<DenseWeights>& weights, const DenseBuffers& buffers);

}  // namespace packhorse
