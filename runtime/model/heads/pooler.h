// The pooler head: a dense layer on the first token of each sequence, as BERT was trained with.
#pragma once

#include "model/heads/head_run.h"
#include "model/layer_packer.h"

namespace packhorse {

struct PoolerBuffers {
  TensorView input;  // [B, E] first tokens
  void* workspace = nullptr;
};

LinearWeight build_pooler(const Spec& spec, LayerPacker& packer);
PoolerBuffers take_pooler(const LinearWeight& weight, const HeadArena& arena);
/// `out`: [B, E] of the model's dtype.
void make_pooled(const HeadRun& run, Activation activation, const LinearWeight& weight,
                 const PoolerBuffers& buffers, const TensorView& out);

}  // namespace packhorse
