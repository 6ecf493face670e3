// Elementwise activations. Apart from args.h because kernels of the CPU see it, whose headers must
// bring no inline functions.
#pragma once

#include <stdint.h>

namespace packhorse {

enum class Activation : uint8_t { kNone, kGelu, kGeluTanh, kRelu, kSilu, kTanh, kSigmoid };

/// Gate and up features of a gated feed-forward block lie in turn, so many of each at a time.
inline constexpr int kGateBlock = 16;

}  // namespace packhorse
