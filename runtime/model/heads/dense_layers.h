// Several dense layers, each on what the one before gives, as embeddings and vectors of tokens go
// through.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/heads/head_run.h"
#include "model/layer_packer.h"
#include "model/spec.h"

namespace packhorse {

/// Of a DenseSpec. Features are padded, but for those that are added to the layer's input.
struct DenseWeights {
  LinearWeight layer;
  /// Of its input, where the sizes differ, or where the input's columns lie apart.
  std::optional<LinearWeight> residual;
};

struct DenseBuffers {
  std::vector<TensorView> layers;  // [rows, padded size] of what each gives
  void* workspace = nullptr;
};

/// `input`: how its features lie in rows of `columns`; `name_of`: what layer i is called in the
/// source.
std::vector<DenseWeights> build_dense_layers(const std::vector<DenseSpec>& layers, Spread input,
                                             int64_t columns,
                                             const std::function<std::string(size_t)>& name_of,
                                             LayerPacker& packer);
DenseBuffers take_dense_layers(const std::vector<DenseWeights>& weights, int64_t rows,
                               const std::string& name, const HeadArena& arena);
/// What the last layer gives; `x` where there is none.
TensorView run_dense_layers(const HeadRun& run, TensorView x, const std::vector<DenseSpec>& layers,
                            const std::vector<DenseWeights>& weights, const DenseBuffers& buffers);

}  // namespace packhorse
