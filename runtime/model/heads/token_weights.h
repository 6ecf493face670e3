// How much each token counts in lexical matching: a dense layer of one feature, never negative.
#pragma once

#include "model/heads/head_run.h"
#include "model/layer_packer.h"

namespace packhorse {

struct TokenWeightsBuffers {
  TensorView padded;  // [T, padded 1]
  void* workspace = nullptr;
};

LinearWeight build_token_weights(const Spec& spec, LayerPacker& packer);
TokenWeightsBuffers take_token_weights(const LinearWeight& weight, const HeadArena& arena);
/// `out`: [T, 1] float32.
void make_token_weights(const HeadRun& run, const LinearWeight& weight,
                        const TokenWeightsBuffers& buffers, const TensorView& out);

}  // namespace packhorse
