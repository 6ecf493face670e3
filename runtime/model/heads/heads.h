// All heads of a model, which compute outputs from the last hidden state. Each head has a file of
// its own in this folder.
#pragma once

#include <optional>
#include <vector>

#include "model/heads/classifier.h"
#include "model/heads/embedding.h"
#include "model/heads/lm.h"
#include "model/heads/masked_lm.h"
#include "model/heads/output_layout.h"
#include "model/heads/pooler.h"
#include "model/heads/token_weights.h"
#include "model/heads/vectors.h"

namespace packhorse {

/// The weights of the heads that the spec has.
struct HeadWeights {
  EmbeddingWeights embedding;
  std::optional<LinearWeight> pooler;
  std::optional<ClassifierWeights> classifier;
  std::optional<LinearWeight> token_weights;
  std::vector<DenseWeights> vectors;
  std::optional<MaskedLmWeights> masked_lm;
  std::optional<LmWeights> lm;
};

/// The buffers of all heads. The scratch buffers of different heads share the same memory.
struct HeadBuffers {
  OutputBuffers outputs;  // `hidden` is LayerBuffers::hidden
  EmbeddingBuffers embedding;
  HeadScratch pooler;
  HeadScratch classifier;
  HeadScratch token_weights;
  DenseBuffers vectors;
  MaskedLmScratch masked_lm;
  LmScratch lm;
  /// [max(T, B), hidden_size] copies on their way to the host, if hidden states are 16-bit or
  /// padded.
  TensorView as_float32;
};

HeadWeights build_heads(const Spec& spec, const StemWeights& stem, LayerPacker& packer);
/// `hidden` is the buffer of the last hidden state.
HeadBuffers take_head_buffers(const Spec& spec, const HeadWeights& weights,
                              const Capacity& capacity, const TensorView& hidden, const Ops& ops,
                              Arena& arena);
/// Computes the outputs that are `wanted`, except `hidden`, into the first rows of `to`. The spec
/// must have them.
void make_outputs(const HeadRun& run, const HeadsSpec& spec, const HeadWeights& weights,
                  const HeadBuffers& buffers, const PerOutput<OutputLayout>& layouts,
                  const DeviceOutputSet& wanted, const OutputBuffers& to);

}  // namespace packhorse
