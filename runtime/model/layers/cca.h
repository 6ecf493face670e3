// Compressed convolutional attention: self-attention over heads that two causal convolutions make
// of latents, the down-projections of the hidden states (CcaArgs).
#pragma once

#include "model/layers/self_attention.h"
#include "ops/args/cca.h"

namespace packhorse {

/// The pointers and `grouped` as CcaArgs has them.
struct CcaWeights {
  SelfAttentionWeights attention;  // whose `qkv` gives latents
  const float* depthwise = nullptr;
  const float* depthwise_bias = nullptr;
  TensorView grouped;
  const float* grouped_bias = nullptr;
  const float* temperature = nullptr;
};

/// Buffers that it needs beside SelfAttentionBuffers. T is max_tokens.
struct CcaBuffers {
  TensorView latents;  // [T, (H + 2 Hkv) d]
  void* workspace = nullptr;
};

CcaWeights build_cca(const StackLoad& load, const CcaSpec& spec, int64_t set);

/// Takes the buffers for the blocks of all layers. That of heads has been taken.
void take_cca(const StackSpec& spec, const StackWeights& weights, const Capacity& capacity,
              int64_t max_seqlen, const Ops& ops, Arena& arena, LayerBuffers& buffers);

/// Sizes and weights of the operator. `head_dim`: as stored.
CcaArgs cca_of(const CcaSpec& spec, const CcaWeights& weights, int64_t head_dim);

/// Computes the context of the batch's tokens from the input of the block.
void compute(const StackRun& run, const Block& block, const CcaWeights& weights);
/// Adds it to the hidden state, as self-attention does.
void add(const StackRun& run, const Block& block, const CcaWeights& weights);

}  // namespace packhorse
