// Adds the outputs of adapters (LoRA) to rows, and applies activations to such rows.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/args/lora.h"

namespace packhorse::cuda {

/// Rotation of the first columns of an adapter's output, before it is added: `head_dim` columns of
/// each head, of which the pairs among the first `dims` turn by their angles. Nothing is rotated
/// where `positions` is null.
struct LoraRotation {
  const float* positions = nullptr;  // [rows] of stride `stride`
  int64_t stride = 1;
  const float* frequencies = nullptr;  // [dims / 2]
  int32_t dims = 0;
  int32_t head_dim = 0;
  int32_t columns = 0;  // columns of all heads that are rotated
};

/// Launches need columns and strides of whole 16-byte accesses.
void launch_add_lora(const LoraArgs& args, const LoraRotation& rotation, cudaStream_t stream);

void launch_activate(const ActivateArgs& args, cudaStream_t stream);

}  // namespace packhorse::cuda
