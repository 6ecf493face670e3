// The embedding of a sequence: its tokens pooled, dense layers, its length made 1.
#pragma once

#include <vector>

#include "model/heads/dense_layers.h"

namespace packhorse {

struct EmbeddingWeights {
  std::vector<DenseWeights> dense;
};

struct EmbeddingBuffers {
  TensorView pooled;  // [B, E of each pooling], for the layers after pooling
  DenseBuffers dense;
};

EmbeddingWeights build_embedding(const Spec& spec, LayerPacker& packer);
EmbeddingBuffers take_embedding(const EmbeddingWeights& weights, const HeadArena& arena);
/// `out`: [B, embedding_columns] float32.
void make_embedding(const HeadRun& run, const EmbeddingSpec& spec, const EmbeddingWeights& weights,
                    const EmbeddingBuffers& buffers, const TensorView& out);

}  // namespace packhorse
