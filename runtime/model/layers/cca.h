// The weights of compressed convolutional attention beside its dense layers.
#pragma once

#include <string>

#include "model/loading/layer_packer.h"
#include "model/loading/stack_layouts.h"
#include "ops/args/cca.h"

namespace packhorse {

/// As CcaArgs has them.
struct CcaWeights {
  const float* depthwise = nullptr;
  const float* depthwise_bias = nullptr;
  TensorView grouped;
  const float* grouped_bias = nullptr;
  const float* temperature = nullptr;
};

/// Of the layer of weights whose attention has this name, with a dot at its end.
CcaWeights build_cca(const AttentionSpec& spec, const StackLayouts& layouts,
                     const std::string& name, LayerPacker& packer);

/// Sizes and weights of the operator for a layer whose projection is `qkv`.
CcaArgs cca_of(const AttentionSpec& spec, const CcaWeights& weights, const LinearWeight& qkv,
               int64_t head_dim);

}  // namespace packhorse
