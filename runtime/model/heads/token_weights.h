// The head that gives each token its weight in lexical matching: a dense layer with one output
// feature, which ReLU keeps from being negative.
#pragma once

#include "model/heads/head_run.h"
#include "model/loading/layer_packer.h"

namespace packhorse {

LinearWeight build_token_weights(const Spec& spec, LayerPacker& packer);
HeadScratch take_token_weights(const LinearWeight& weight, const HeadArena& arena);
/// `out` is [T, 1] float32.
void make_token_weights(const HeadRun& run, const LinearWeight& weight, const HeadScratch& buffers,
                        const TensorView& out);

}  // namespace packhorse
