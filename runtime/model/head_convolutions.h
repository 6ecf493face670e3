// The weights of compressed convolutional attention beside its dense layers.
#pragma once

#include <string>

#include "model/layer_packer.h"
#include "model/stack_layouts.h"
#include "ops/convolve_args.h"

namespace packhorse {

/// As ConvolveHeadsArgs has them.
struct HeadConvolutions {
  const float* depthwise = nullptr;
  const float* depthwise_bias = nullptr;
  TensorView grouped;
  const float* grouped_bias = nullptr;
  const float* temperature = nullptr;
};

/// Of the layer of weights whose attention has this name, with a dot at its end.
HeadConvolutions build_head_convolutions(const AttentionSpec& spec, const StackLayouts& layouts,
                                         const std::string& name, LayerPacker& packer);

/// Sizes and weights of the operator for a layer whose projection is `qkv`.
ConvolveHeadsArgs convolve_heads_of(const AttentionSpec& spec, const HeadConvolutions& weights,
                                    const LinearWeight& qkv, int64_t head_dim);

}  // namespace packhorse
