#include "model/layers/feed_forward.h"

#include <algorithm>

#include "core/math.h"
#include "model/layers/adapted_linear.h"
#include "model/layers/residual.h"
#include "model/layers/stack_load.h"

namespace packhorse {
namespace {

FeedForwardArgs args_of(const StackSpec& stack, const FeedForwardSpec& spec,
                        const FeedForwardWeights& weights, const LayerBuffers& buffers,
                        int64_t rows) {
  FeedForwardArgs args;
  set_input(args, weights.up, buffers, rows);
  args.inner_scale = weights.inner_scale;
  args.up = weights.up;
  args.down = weights.down;
  args.activation = spec.activation;
  args.gated = spec.gated;
  args.workspace = buffers.feed_forward.workspace;
  set_result(args, stack, buffers, rows);
  return args;
}

// The first rows and columns of a buffer for a block that may be narrower than the widest.
TensorView part_of(const TensorView& buffer, int64_t rows, int64_t columns) {
  return {buffer.data, buffer.dtype, rows, columns};
}

// The two dense layers of the block as operators of their own, which batches with adapters take.
// They give the bits of the one operator.
FeedForwardUpArgs up_of(const FeedForwardArgs& block, const AdaptedFeedForwardBuffers& buffers) {
  FeedForwardUpArgs args;
  args.x = block.x;
  args.up = block.up;
  args.activation = block.activation;
  args.gated = block.gated;
  args.out = part_of(buffers.inner, block.x.rows(), block.down.in_features);
  args.sums = part_of(buffers.sums, block.x.rows(), block.up.out_features);
  args.row_count = block.row_count;
  args.workspace = buffers.linear_workspace;
  return args;
}

LinearArgs sums_of(const FeedForwardUpArgs& up) {
  LinearArgs args;
  args.x = up.x;
  args.weight = up.up;
  args.out = up.sums;
  args.row_count = up.row_count;
  args.workspace = up.workspace;
  return args;
}

LinearArgs down_of(const FeedForwardArgs& block, const AdaptedFeedForwardBuffers& buffers) {
  LinearArgs args;
  args.x = part_of(buffers.inner, block.x.rows(), block.down.in_features);
  args.weight = block.down;
  args.residual = block.residual;
  args.norm = block.norm;
  args.out = block.out;
  args.row_count = block.row_count;
  args.workspace = buffers.linear_workspace;
  return args;
}

// The block in two halves. Tokens without an adapter have the bits of the one operator: their
// activation is computed from sums that were not rounded, where the device does so.
void run_adapted(const StackRun& run, const Block& block, const FeedForwardArgs& args) {
  const AdaptedFeedForwardBuffers& buffers = run.buffers.feed_forward.adapted;
  const FeedForwardUpArgs up = up_of(args, buffers);
  const bool adapted = adapts(run, LoraTarget::kUp);
  if (!adapted || !run.adapters->uses.up_of_all) run.ops.feed_forward_up(up);
  if (adapted) {
    run.ops.linear(sums_of(up));
    const LoraArgs lora = lora_of(run, block, LoraTarget::kUp, up.x, up.sums);
    run.ops.add_lora(lora);
    run.ops.activate({.x = up.sums,
                      .activation = up.activation,
                      .gated = up.gated,
                      .slots = lora.slots,
                      .ranks = lora.layer.ranks,
                      .out = up.out,
                      .row_count = up.row_count});
  }
  run_linear(run, block, LoraTarget::kDown, down_of(args, buffers));
}

}  // namespace

int64_t padded_inner(int64_t size, bool gated, const LayerPacker& packer) {
  if (!gated) return packer.inner_width(size);
  return round_up(size, kGateBlock);
}

DenseLayout up_layout(const StackSpec& stack, const FeedForwardSpec& spec,
                      const LayerPacker& packer, int64_t set) {
  const std::string name = name_of_block(stack, set, "ffn.");
  const std::string gate = name + "gate";
  const std::string up = name + "up";
  DenseLayout layout;
  layout.name = up;
  layout.out_features = padded_inner(spec.size, spec.gated, packer);
  layout.columns = whole(stack.hidden_size);
  layout.in_features = packer.width(stack.hidden_size);
  if (!spec.gated) {
    layout.parts = {{up, whole(spec.size), spec.up_bias}};
    return layout;
  }
  layout.parts = {{gate, {spec.size, kGateBlock, 2 * kGateBlock, 0}, spec.up_bias},
                  {up, {spec.size, kGateBlock, 2 * kGateBlock, kGateBlock}, spec.up_bias}};
  layout.out_features *= 2;
  layout.fused = {{{gate, up}, name + "gate_up"}, {{up, gate}, name + "up_gate"}};
  return layout;
}

DenseLayout down_layout(const StackSpec& stack, const FeedForwardSpec& spec,
                        const LayerPacker& packer, int64_t set) {
  const std::string name = name_of_block(stack, set, "ffn.down");
  return {name,
          {{name, whole(stack.hidden_size), spec.down_bias}},
          packer.width(stack.hidden_size),
          whole(spec.size),
          padded_inner(spec.size, spec.gated, packer)};
}

FeedForwardWeights build_feed_forward(const StackLoad& load, const FeedForwardSpec& spec,
                                      int64_t set) {
  const LinearFormat format = load.packer.precision().layers;
  const DenseLayout up = up_layout(load.spec, spec, load.packer, set);
  FeedForwardWeights weights;
  WeightSeen seen;
  if (format.weight == DType::kFloat8) {
    seen = [&](const float* weight, const float* bias) {
      weights.inner_scale =
          load.float8.inner_scale(set, weight, up.out_features, up.in_features, bias);
    };
  }
  weights.up = load.packer.linear(up, format, seen);
  weights.down = load.packer.linear(down_layout(load.spec, spec, load.packer, set), format);
  return weights;
}

void take_feed_forward(const StackSpec& spec, const StackWeights& weights, const Capacity& capacity,
                       const Ops& ops, Arena& arena, LayerBuffers& buffers) {
  const int64_t tokens = capacity.max_tokens;
  // The widest block, and the most that a function of a block gives.
  int64_t sums = 0;
  int64_t inner = 0;
  const auto most_bytes = [&](const auto& bytes_of) {
    size_t most = 0;
    for (const Block& block : blocks_of(spec, weights)) {
      const auto* one = std::get_if<FeedForwardWeights>(&block.weights.kind);
      if (one == nullptr) continue;
      sums = std::max(sums, one->up.out_features);
      inner = std::max(inner, one->down.in_features);
      most = std::max(most, bytes_of(args_of(spec, std::get<FeedForwardSpec>(block.spec.kind), *one,
                                             buffers, tokens)));
    }
    return most;
  };
  FeedForwardBuffers& taken = buffers.feed_forward;
  {
    const Arena::Scope block(arena);
    taken.workspace =
        arena.take("feed_forward_workspace",
                   most_bytes([&](const auto& args) { return ops.feed_forward_workspace(args); }));
  }
  if (capacity.adapters.max_adapters == 0) return;
  const Arena::Scope adapted(arena);
  const DType dtype = buffers.hidden.dtype;
  taken.adapted.sums = arena.take_matrix("adapted_sums", tokens, sums, dtype);
  taken.adapted.inner = arena.take_matrix("adapted_inner", tokens, inner, dtype);
  taken.adapted.linear_workspace =
      arena.take("adapted_workspace", most_bytes([&](const FeedForwardArgs& args) {
                   return std::max(ops.linear_workspace(sums_of(up_of(args, taken.adapted))),
                                   ops.linear_workspace(down_of(args, taken.adapted)));
                 }));
}

void add(const StackRun& run, const Block& block, const FeedForwardWeights& weights) {
  FeedForwardArgs args = args_of(run.spec, std::get<FeedForwardSpec>(block.spec.kind), weights,
                                 run.buffers, run.batch.num_tokens);
  args.x = block_input(run, block);
  if (!run.spec.pre_norm()) set_norm(args, run, block.weights.norm, block.read);
  args.row_count = run.batch.counts;
  if (adapts(run, LoraTarget::kUp) || adapts(run, LoraTarget::kDown)) {
    run_adapted(run, block, args);
  } else {
    run.ops.feed_forward(args);
  }
  add_result(run, block);
}

}  // namespace packhorse
