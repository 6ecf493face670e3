// The head that makes a vector of each token, for late interaction.
#pragma once

#include <vector>

#include "model/heads/dense_layers.h"

namespace packhorse {

std::vector<DenseWeights> build_vectors(const Spec& spec, LayerPacker& packer);
DenseBuffers take_vectors(const std::vector<DenseWeights>& weights, const HeadArena& arena);
/// `out` is [T, size] float32.
void make_vectors(const HeadRun& run, const VectorsSpec& spec,
                  const std::vector<DenseWeights>& weights, const DenseBuffers& buffers,
                  const TensorView& out);

}  // namespace packhorse
