#include "model/layers/adapted_linear.h"

namespace packhorse {

bool adapts(const StackRun& run, LoraTarget target) {
  return run.adapters != nullptr && run.adapters->uses[target];
}

LoraArgs lora_of(const AdapterBatch& adapters, size_t set, LoraTarget target, const TensorView& x,
                 const TensorView& out, float* workspace) {
  LoraArgs args;
  args.x = x;
  args.layer = (*adapters.slots)[set][static_cast<size_t>(target)];
  args.slots = adapters.rows;
  args.out = out;
  args.workspace = workspace;
  return args;
}

LoraArgs lora_of(const StackRun& run, const Block& block, LoraTarget target, const TensorView& x,
                 const TensorView& out) {
  LoraArgs args = lora_of(*run.adapters, block.set, target, x, out, run.buffers.adapted_ranks);
  args.row_count = run.batch.counts;
  return args;
}

void run_linear(const StackRun& run, const Block& block, LoraTarget target,
                const LinearArgs& args) {
  const bool adapted = adapts(run, target);
  const auto add = [&](const TensorView& to) {
    run.ops.add_lora(lora_of(run, block, target, args.x, to));
  };
  if (adapted && args.residual) add(args.residual);
  run.ops.linear(args);
  if (adapted && !args.residual) add(args.out);
}

}  // namespace packhorse
