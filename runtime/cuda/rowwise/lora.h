// What adapters add to rows, and activations of such rows.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/lora.h"

namespace packhorse::cuda {

/// How the first columns of what is added are rotated before they are added: `head_dim` columns of
/// each head, of which the pairs among the first `dims` turn by their angles. Without positions
/// nothing is rotated.
struct LoraRotation {
  const float* positions = nullptr;  // [rows] of stride `stride`
  int64_t stride = 1;
  const float* frequencies = nullptr;  // [dims / 2]
  int32_t dims = 0;
  int32_t head_dim = 0;
  int32_t columns = 0;  // of all heads that are rotated
};

/// All columns and strides are of whole 16-byte accesses.
void launch_add_lora(const LoraArgs& args, const LoraRotation& rotation,
                     const KernelStream& stream);

void launch_activate(const ActivateArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
