// The pooler head: a dense layer on the first token of each sequence, with which BERT was trained.
#pragma once

#include "model/heads/head_run.h"
#include "model/loading/layer_packer.h"

namespace packhorse {

LinearWeight build_pooler(const Spec& spec, LayerPacker& packer);
HeadScratch take_pooler(const LinearWeight& weight, const HeadArena& arena);
/// `out` is [B, E] in the model's dtype.
void make_pooled(const HeadRun& run, Activation activation, const LinearWeight& weight,
                 const HeadScratch& buffers, const TensorView& out);

}  // namespace packhorse
