// The state that blocks share while the weights of their stack are laid out or read.
#pragma once

#include <memory>
#include <string>

#include "core/format.h"
#include "model/layers/relative_positions.h"
#include "model/loading/float8_layers.h"
#include "model/loading/layer_packer.h"
#include "model/spec/spec.h"

namespace packhorse {

struct StackLoad {
  const StackSpec& spec;
  const StackSpec* source;  // the stack that it attends to, or null
  LayerPacker& packer;
  const Float8Layers float8;
  std::unique_ptr<RelativePositions> relative;  // where attention is disentangled
};

/// The beginning of the names of all tensors of a block of `stack`: those of `part`, "attention.",
/// "cross_attention." or "ffn.", in set `set` of weights.
inline std::string name_of_block(const StackSpec& stack, int64_t set, const char* part) {
  return concat(stack.prefix, "layers.", set, '.', part);
}

}  // namespace packhorse
