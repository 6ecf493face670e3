// The head of a causal language model. It makes logits over the vocabulary of rows of the last
// hidden state.
#pragma once

#include "model/heads/head_run.h"
#include "model/loading/layer_packer.h"
#include "model/stem/tokens.h"

namespace packhorse {

struct LmWeights {
  std::optional<LinearWeight> projection;  // [padded embedding_size, E]
  LinearWeight decoder;                    // [padded vocab_size, padded embedding_size or E]
};

/// `input` is for the hidden rows that logits are made of, `dense` for their projection.
using LmScratch = HeadScratch;

/// The decoder is the table of `stem` itself, where it is tied to one in groups.
LmWeights build_lm(const Spec& spec, const StemWeights& stem, LayerPacker& packer);
/// Takes scratch for `rows` rows.
LmScratch take_lm(const LmWeights& weights, int64_t rows, const HeadArena& arena);
/// Makes logits of the rows `x` [n, E], which may be `buffers.input`. `out` is [n, vocab_size]
/// float32, or the first columns of `buffers.padded`. `row_count`, if not null, is in device
/// memory: rows from that number on become zeros.
void make_lm_logits(const LmSpec& spec, const LmWeights& weights, const LmScratch& buffers,
                    const TensorView& x, const TensorView& out, const int32_t* row_count, Ops& ops);
/// Makes logits of the rows that the caller chose. `out` is [num_predictions, vocab_size] float32.
void make_lm_predictions(const HeadRun& run, const LmSpec& spec, const LmWeights& weights,
                         const LmScratch& buffers, const TensorView& out);

}  // namespace packhorse
