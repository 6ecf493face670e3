// The classifier head: logits of labels for each sequence or for each token.
#pragma once

#include <optional>

#include "model/heads/head_run.h"
#include "model/loading/layer_packer.h"

namespace packhorse {

struct ClassifierWeights {
  std::optional<LinearWeight> dense;  // [E, E]
  NormWeight norm;
  LinearWeight output;  // [padded num_labels, E]
};

ClassifierWeights build_classifier(const Spec& spec, LayerPacker& packer);
HeadScratch take_classifier(const ClassifierSpec& spec, const ClassifierWeights& weights,
                            const HeadArena& arena);
/// `pooled` is the output of the pooler head, for classifiers that read it. `out` is [T or B,
/// num_labels] float32.
void make_logits(const HeadRun& run, const ClassifierSpec& spec, const ClassifierWeights& weights,
                 const HeadScratch& buffers, const TensorView& pooled, const TensorView& out);

}  // namespace packhorse
