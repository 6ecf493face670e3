// Dense layers of blocks, with what the adapters of a batch add to them.
#pragma once

#include "model/layers/stack_run.h"

namespace packhorse {

/// Returns whether a weight has at most 10 bits, and its inputs are quantised too.
inline bool is_quantized(const LinearWeight& weight) {
  return weight.dtype == DType::kInt8 || weight.groups.wide_inputs;
}
/// True if an adapter of the batch adds something to these layers.
bool adapts(const StackRun& run, LoraTarget target);
/// The terms that adapters add to a layer in set `set` of weights. `workspace`:
/// LoraArgs::workspace.
LoraArgs lora_of(const AdapterBatch& adapters, size_t set, LoraTarget target, const TensorView& x,
                 const TensorView& out, float* workspace);
/// The terms that adapters add to a layer of `block`.
LoraArgs lora_of(const StackRun& run, const Block& block, LoraTarget target, const TensorView& x,
                 const TensorView& out);
/// A dense layer without an activation, and what adapters add to it: to the residual, so that a
/// norm sees it, or else to the result.
void run_linear(const StackRun& run, const Block& block, LoraTarget target, const LinearArgs& args);

}  // namespace packhorse
