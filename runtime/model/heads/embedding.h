// The embedding head: pools the tokens of each sequence, runs dense layers if the spec has any, and
// normalises the result to length 1 if the spec says so.
#pragma once

#include <optional>
#include <vector>

#include "model/heads/dense_layers.h"
#include "model/heads/probe.h"

namespace packhorse {

struct EmbeddingWeights {
  std::optional<ProbeWeights> probe;  // in place of poolings
  std::optional<NormWeight> norm;     // after pooling
  int64_t width = 0;                  // columns of all poolings, as stored
  std::vector<DenseWeights> dense;
};

struct EmbeddingBuffers {
  ProbeBuffers probe;
  TensorView pooled;  // [B, E of each pooling], input of the dense layers
  DenseBuffers dense;
};

EmbeddingWeights build_embedding(const Spec& spec, LayerPacker& packer);
EmbeddingBuffers take_embedding(const EmbeddingWeights& weights, const HeadArena& arena);
/// `out` is [B, embedding_columns] float32.
void make_embedding(const HeadRun& run, const HeadsSpec& heads, const EmbeddingWeights& weights,
                    const EmbeddingBuffers& buffers, const TensorView& out);

}  // namespace packhorse
