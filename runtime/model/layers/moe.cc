#include "model/layers/moe.h"

#include <algorithm>
#include <string>

#include "core/format.h"
#include "model/layers/feed_forward.h"
#include "model/layers/residual.h"
#include "model/layers/stack_load.h"

namespace packhorse {
namespace {

// The two layouts of the dense layers of one expert, which are slices of a tensor of all of them.
DenseLayout expert_up(const StackSpec& stack, const MoeSpec& spec, const LayerPacker& packer,
                      const std::string& name, int64_t expert) {
  Part gate = {concat(name, expert, ".gate"), {spec.size, kGateBlock, 2 * kGateBlock, 0}, false};
  gate.weight = name + "gate_up";
  gate.slices = spec.num_experts;
  gate.slice_rows = 2 * spec.size;
  gate.first = expert * gate.slice_rows;
  Part up = gate;
  up.name = concat(name, expert, ".up");
  up.rows.offset = kGateBlock;
  up.first += spec.size;
  return {up.name,
          {gate, up},
          2 * padded_inner(spec.size, true, packer),
          whole(stack.hidden_size),
          packer.width(stack.hidden_size)};
}

DenseLayout expert_down(const StackSpec& stack, const MoeSpec& spec, const LayerPacker& packer,
                        const std::string& name, int64_t expert) {
  Part down = {concat(name, expert, ".down"), whole(stack.hidden_size), false};
  down.weight = name + "down";
  down.slices = spec.num_experts;
  down.slice_rows = stack.hidden_size;
  down.first = expert * down.slice_rows;
  return {down.name,
          {down},
          packer.width(stack.hidden_size),
          whole(spec.size),
          padded_inner(spec.size, true, packer)};
}

LinearArgs linear_of(const LinearWeight& weight, const TensorView& x, const TensorView& out,
                     const MoeBuffers& buffers, const int32_t* row_count = nullptr) {
  LinearArgs args;
  args.x = x;
  args.weight = weight;
  args.out = out;
  args.row_count = row_count;
  args.workspace = buffers.linear_workspace;
  return args;
}

MoeArgs args_of(const MoeWeights& weights, const MoeBuffers& buffers, const TensorView& x,
                const int32_t* row_count = nullptr) {
  MoeArgs args;
  args.x = x;
  args.row_count = row_count;
  args.logits = buffers.logits.first_rows(x.rows());
  args.num_classes = weights.router.num_classes;
  args.balance = weights.router.balance;
  args.experts = weights.experts;
  args.out = x;
  args.workspace = buffers.workspace;
  return args;
}

RouterWeights build_router(const StackLoad& load, const MoeSpec& spec, const std::string& name) {
  LayerPacker& packer = load.packer;
  const int64_t size = spec.router.size;
  RouterWeights weights;
  weights.down = packer.dense(name + "down", size, load.spec.hidden_size);
  if (spec.router.takes_state) weights.state_scale = packer.vector(name + "state_scale", size);
  weights.norm = packer.norm(name + "norm", size);
  weights.first = packer.dense(name + "first", size, size);
  weights.second = packer.dense(name + "second", size, size);
  weights.output = packer.dense(name + "output", spec.num_classes(), size, false);
  weights.balance = packer.vector(name + "balance", spec.num_classes());
  weights.num_classes = static_cast<int32_t>(spec.num_classes());
  return weights;
}

// Writes the logits of all experts, and the state.
void route(const StackRun& run, const RouterWeights& weights, const TensorView& x,
           const TensorView& logits) {
  const MoeBuffers& buffers = run.buffers.moe;
  const int32_t* const row_count = run.batch.counts;
  const TensorView state = run.rows(buffers.state);
  const TensorView inner = run.rows(buffers.inner[0]);
  const TensorView other = run.rows(buffers.inner[1]);
  const auto linear = [&](const LinearWeight& weight, const TensorView& from, const TensorView& to,
                          Activation function = Activation::kNone) {
    LinearArgs args = linear_of(weight, from, to, buffers, row_count);
    args.activation = function;
    run.ops.linear(args);
  };
  if (weights.state_scale == nullptr) {
    linear(weights.down, x, state);
  } else {
    linear(weights.down, x, inner);
    AddScaledArgs sum;
    sum.x = inner;
    sum.residual = state;
    sum.residual_scale = weights.state_scale;
    sum.out = state;
    sum.row_count = row_count;
    run.ops.add_scaled(sum);
  }
  run.ops.norm({.x = state, .norm = weights.norm, .out = inner, .row_count = row_count});
  linear(weights.first, inner, other, Activation::kGelu);
  linear(weights.second, other, inner, Activation::kGelu);
  linear(weights.output, inner, logits);
}

// The mixtures of all sets of weights.
std::vector<const MoeWeights*> mixtures(const StackSpec& spec, const StackWeights& weights) {
  std::vector<const MoeWeights*> found;
  for (const Block& block : blocks_of(spec, weights)) {
    if (const auto* one = std::get_if<MoeWeights>(&block.weights.kind)) found.push_back(one);
  }
  return found;
}

}  // namespace

MoeWeights build_moe(const StackLoad& load, const MoeSpec& spec, int64_t set) {
  LayerPacker& packer = load.packer;
  const std::string name = name_of_block(load.spec, set, "ffn.experts.");
  MoeWeights weights;
  weights.router = build_router(load, spec, name_of_block(load.spec, set, "ffn.router."));
  for (int64_t e = 0; e < spec.num_experts; ++e) {
    const LinearFormat& format = packer.precision().layers;
    ExpertWeights expert;
    expert.up = packer.linear(expert_up(load.spec, spec, packer, name, e), format);
    expert.down = packer.linear(expert_down(load.spec, spec, packer, name, e), format);
    weights.experts.push_back(expert);
  }
  return weights;
}

void take_moe_state(const StackSpec& spec, const StackWeights& weights, int64_t tokens,
                    Arena& arena, LayerBuffers& buffers) {
  const std::vector<const MoeWeights*> all = mixtures(spec, weights);
  if (all.empty()) return;
  buffers.moe.state = arena.take_matrix(
      "router_state", tokens, all.front()->router.down.out_features, buffers.hidden.dtype);
}

void take_moe(const StackSpec& spec, const StackWeights& weights, int64_t tokens, const Ops& ops,
              Arena& arena, LayerBuffers& buffers) {
  const std::vector<const MoeWeights*> all = mixtures(spec, weights);
  const RouterWeights& router = all.front()->router;  // all routers have the same sizes
  MoeBuffers& taken = buffers.moe;
  const DType dtype = buffers.hidden.dtype;
  for (TensorView& inner : taken.inner) {
    inner = arena.take_matrix("router_inner", tokens, router.down.out_features, dtype);
  }
  taken.logits = arena.take_matrix("router_logits", tokens, router.output.out_features, dtype);
  const TensorView x(nullptr, dtype, tokens, router.down.in_features);
  const TensorView& inner = taken.inner[0];
  taken.linear_workspace = arena.take(
      "router_workspace",
      std::max({ops.linear_workspace(linear_of(router.down, x, taken.state, taken)),
                ops.linear_workspace(linear_of(router.first, inner, taken.inner[1], taken)),
                ops.linear_workspace(linear_of(router.output, inner, taken.logits, taken))}));
  size_t bytes = 0;
  for (const MoeWeights* one : all) {
    bytes = std::max(bytes, ops.moe_workspace(args_of(*one, taken, x)));
  }
  taken.workspace = arena.take("moe_workspace", bytes);
}

void add(const StackRun& run, const Block& block, const MoeWeights& weights) {
  MoeArgs args = args_of(weights, run.buffers.moe, block_input(run, block), run.batch.counts);
  args.activation = std::get<MoeSpec>(block.spec.kind).activation;
  route(run, weights.router, args.x, args.logits);
  run.ops.moe(args);
  add_result(run, block);
}

}  // namespace packhorse
