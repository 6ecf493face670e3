// Products of LoRA adapters, added to rows.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/attention.h"
#include "ops/args/lora.h"

namespace packhorse::cuda {

/// Rotates what is added to the first columns as `heads` says, if it has a rotation, before it is
/// added. All columns and strides are of whole 16-byte accesses.
void launch_add_lora(const LoraArgs& args, const RopeArgs& heads, const KernelStream& stream);

}  // namespace packhorse::cuda
