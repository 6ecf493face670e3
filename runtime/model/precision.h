// The formats of a model's dense layers.
#pragma once

#include "ops/linear_packer.h"

namespace packhorse {

/// Only the layers of the stack may be quantised: they hold nearly all of the weights. Embeddings,
/// norms and heads affect results most and cost little, so they never are.
struct Precision {
  LinearFormat layers;  // the dense layers of attention and of feed-forward blocks
  LinearFormat rest;    // the dense layers of stem, convolution and heads: never quantised

  /// The dtype of activations, tables and outputs.
  DType floats() const { return rest.compute; }
};

/// The precision of a model that is loaded with `dtype`. Throws as LinearPacker::format does.
inline Precision precision_of(DType dtype, const LinearPacker& packer) {
  const LinearFormat format = packer.format(dtype);
  return {format, format.plain()};
}

}  // namespace packhorse
