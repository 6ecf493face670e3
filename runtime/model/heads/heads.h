// All heads of a model: what is made of the last hidden state. One file each lies beside this one.
#pragma once

#include <optional>
#include <vector>

#include "model/heads/classifier.h"
#include "model/heads/embedding.h"
#include "model/heads/masked_lm.h"
#include "model/heads/outputs.h"
#include "model/heads/pooler.h"
#include "model/heads/token_weights.h"
#include "model/heads/vectors.h"

namespace packhorse {

/// Those that the spec has.
struct HeadWeights {
  EmbeddingWeights embedding;
  std::optional<LinearWeight> pooler;
  std::optional<ClassifierWeights> classifier;
  std::optional<LinearWeight> token_weights;
  std::vector<DenseWeights> vectors;
  std::optional<MaskedLmWeights> masked_lm;
};

/// Every head has scratch of its own, in the same bytes.
struct HeadBuffers {
  OutputBuffers outputs;  // `hidden` is that of the layers
  EmbeddingBuffers embedding;
  HeadScratch pooler;
  HeadScratch classifier;
  HeadScratch token_weights;
  DenseBuffers vectors;
  MaskedLmScratch masked_lm;
  /// [max(T, B), hidden_size]: what goes to the host of hidden states that are of 16 bits or
  /// padded.
  TensorView as_float32;
};

HeadWeights build_heads(const Spec& spec, LayerPacker& packer);
/// `hidden`: the last hidden state.
HeadBuffers take_head_buffers(const Spec& spec, const HeadWeights& weights,
                              const Capacity& capacity, const TensorView& hidden, const Ops& ops,
                              Arena& arena);
/// Makes the outputs that are `wanted`, but for `hidden`, in the first rows of `to`. The spec must
/// have them.
void make_outputs(const HeadRun& run, const HeadsSpec& spec, const HeadWeights& weights,
                  const HeadBuffers& buffers, const PerOutput<OutputLayout>& layouts,
                  const DeviceOutputSet& wanted, const OutputBuffers& to);

}  // namespace packhorse
