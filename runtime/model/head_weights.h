// The weights of what stands on an encoder.
#pragma once

#include "model/layer_packer.h"
#include "model/weights.h"

namespace packhorse {

/// Lays the heads of the spec out, and fills them, as `packer` does.
void build_heads(const Spec& spec, const LayerPacker& packer, ModelWeights& weights);

}  // namespace packhorse
