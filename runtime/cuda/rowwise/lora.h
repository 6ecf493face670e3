// Products of LoRA adapters, added to rows.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/attention.h"
#include "ops/args/lora.h"

namespace packhorse::cuda {

/// Computes LoraArgs for 16-bit dtypes. If `heads` has a rotation, the products for the columns of
/// its queries and keys are rotated before they are added. Columns and strides are multiples of 8
/// elements. Asynchronous on `stream`. Throws RuntimeError.
void launch_add_lora(const LoraArgs& args, const RopeArgs& heads, const KernelStream& stream);

}  // namespace packhorse::cuda
