// The head of a masked language model. It makes logits over the vocabulary for rows that the caller
// chose, and the sparse vector of a sequence.
#pragma once

#include "model/heads/head_run.h"
#include "model/loading/layer_packer.h"

namespace packhorse {

struct MaskedLmWeights {
  LinearWeight dense;  // [embedding_size, E]
  NormWeight norm;
  LinearWeight decoder;  // [padded vocab_size, embedding_size]
};

/// `input` holds the hidden rows of predictions. `dense` has rows for all tokens if the spec is
/// sparse, otherwise for predictions only.
struct MaskedLmScratch : HeadScratch {
  void* sparse_workspace = nullptr;
};

MaskedLmWeights build_masked_lm(const Spec& spec, LayerPacker& packer);
MaskedLmScratch take_masked_lm(const MaskedLmSpec& spec, const MaskedLmWeights& weights,
                               const HeadArena& arena);
/// `out` is [B, vocab_size] float32.
void make_sparse(const HeadRun& run, const MaskedLmSpec& spec, const MaskedLmWeights& weights,
                 const MaskedLmScratch& buffers, const TensorView& out);
/// `out` is [num_predictions, vocab_size] float32.
void make_predictions(const HeadRun& run, const MaskedLmSpec& spec, const MaskedLmWeights& weights,
                      const MaskedLmScratch& buffers, const TensorView& out);

}  // namespace packhorse
