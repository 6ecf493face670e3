// Where the attention of a layer takes its keys and values from.
#pragma once

#include <cstddef>

#include "ops/args.h"

namespace packhorse {

/// Keys and values of some tokens, and where each of their sequences begins.
struct Keys {
  TensorView k;  // [Tk, num_kv_heads * head_dim]
  TensorView v;  // likewise
  BatchView batch;
};

class KeySource {
 public:
  virtual ~KeySource() = default;
  /// What the batch attends to in layer `layer` of the stack. `own`: keys and values that the layer
  /// has just made of the batch itself.
  virtual Keys keys(size_t layer, const Keys& own) = 0;
};

/// The batch itself: every sequence attends to its own tokens.
class OwnKeys final : public KeySource {
 public:
  Keys keys(size_t, const Keys& own) override { return own; }
};

}  // namespace packhorse
