// Elementwise activations. They are apart from args/ because the CPU kernels include this file,
// and headers that those include must not define inline functions.
#pragma once

#include <stdint.h>

namespace packhorse {

enum class Activation : uint8_t { kNone, kGelu, kGeluTanh, kRelu, kSilu, kTanh, kSigmoid };

/// In a gated feed-forward block, this many features of the gate alternate with as many of up.
inline constexpr int kGateBlock = 16;

}  // namespace packhorse
