// What a masked language model says about the vocabulary: predictions for rows that the caller
// chose, and the sparse vector of a sequence.
#pragma once

#include "model/heads/head_run.h"
#include "model/layer_packer.h"

namespace packhorse {

struct MaskedLmWeights {
  LinearWeight dense;  // [embedding_size, E]
  NormWeight norm;
  LinearWeight decoder;  // [padded vocab_size, embedding_size]
};

/// `input` are the rows of predictions; `dense` has rows for all tokens where the spec is sparse.
struct MaskedLmScratch : HeadScratch {
  void* sparse_workspace = nullptr;
};

MaskedLmWeights build_masked_lm(const Spec& spec, LayerPacker& packer);
MaskedLmScratch take_masked_lm(const MaskedLmSpec& spec, const MaskedLmWeights& weights,
                               const HeadArena& arena);
/// `out`: [B, vocab_size] float32.
void make_sparse(const HeadRun& run, const MaskedLmSpec& spec, const MaskedLmWeights& weights,
                 const MaskedLmScratch& buffers, const TensorView& out);
/// `out`: [num_predictions, vocab_size] float32.
void make_predictions(const HeadRun& run, const MaskedLmSpec& spec, const MaskedLmWeights& weights,
                      const MaskedLmScratch& buffers, const TensorView& out);

}  // namespace packhorse
