// Which of a model's dense layers are in which format.
#pragma once

#include "ops/linear_packer.h"

namespace packhorse {

/// Nearly all weights are those of the stack's layers, and those alone are quantised; embeddings,
/// norms and heads decide what a result is and cost little.
struct Precision {
  LinearFormat layers;  // the dense layers of attention and of feed-forward blocks
  LinearFormat rest;    // those of the stem, of the convolution and of the heads: never quantised

  /// Of activations, tables and outputs.
  DType floats() const { return rest.compute; }
};

/// Of a model that is loaded with `dtype`. Throws as LinearPacker::format does.
inline Precision precision_of(DType dtype, const LinearPacker& packer) {
  const LinearFormat format = packer.format(dtype);
  return {format, format.plain()};
}

}  // namespace packhorse
