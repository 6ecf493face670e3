// Labels of each sequence, or of each token.
#pragma once

#include <optional>

#include "model/heads/head_run.h"
#include "model/layer_packer.h"

namespace packhorse {

struct ClassifierWeights {
  std::optional<LinearWeight> dense;  // [E, E]
  NormWeight norm;
  LinearWeight output;  // [padded num_labels, E]
};

struct ClassifierBuffers {
  TensorView input;   // [B, E] pooled tokens, where the classifier pools
  TensorView dense;   // [T or B, E], as the classifier is of
  TensorView padded;  // [T or B, padded num_labels]
  void* workspace = nullptr;
};

ClassifierWeights build_classifier(const Spec& spec, LayerPacker& packer);
ClassifierBuffers take_classifier(const ClassifierSpec& spec, const ClassifierWeights& weights,
                                  const HeadArena& arena);
/// `pooled`: what the pooler has written, where that is the classifier's input. `out`: [T or B,
/// num_labels] float32.
void make_logits(const HeadRun& run, const ClassifierSpec& spec, const ClassifierWeights& weights,
                 const ClassifierBuffers& buffers, const TensorView& pooled, const TensorView& out);

}  // namespace packhorse
