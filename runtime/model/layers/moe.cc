#include "model/layers/moe.h"

#include <algorithm>
#include <string>

#include "core/format.h"

namespace packhorse {
namespace {

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

MoeArgs moe_of(const MoeWeights& weights, const MoeBuffers& buffers, const TensorView& x,
               const int32_t* row_count = nullptr) {
  MoeArgs args;
  args.x = x;
  args.row_count = row_count;
  args.logits = buffers.logits.first_rows(x.rows());
  args.num_classes = weights.num_classes;
  args.balance = weights.balance;
  args.experts = weights.experts;
  args.out = x;
  args.workspace = buffers.workspace;
  return args;
}

}  // namespace

MoeWeights build_moe(const Spec& spec, int64_t index, const StackLayouts& layouts,
                     LayerPacker& packer) {
  const MoeSpec& moe = *spec.stack.feed_forward.moe;
  const std::string router = concat("layers.", index, ".ffn.router.");
  const int64_t size = moe.router_size;
  const auto linear = [&](const DenseLayout& layout) {
    return packer.linear(layout.name, layout.parts, layout.out_features, layout.columns,
                         layout.in_features, packer.precision().layers);
  };
  MoeWeights weights;
  weights.down = packer.dense(router + "down", size, spec.hidden_size);
  if (index > 0) weights.state_scale = packer.vector(router + "state_scale", size);
  weights.norm = packer.norm(router + "norm", size);
  weights.first = packer.dense(router + "first", size, size);
  weights.second = packer.dense(router + "second", size, size);
  weights.output = packer.dense(router + "output", moe.num_classes(), size, false);
  weights.balance = packer.vector(router + "balance", moe.num_classes());
  weights.num_classes = static_cast<int32_t>(moe.num_classes());
  for (int64_t e = 0; e < moe.num_experts; ++e) {
    ExpertWeights expert;
    expert.up = linear(layouts.expert_up(index, e));
    expert.down = linear(layouts.expert_down(index, e));
    weights.experts.push_back(expert);
  }
  return weights;
}

void take_moe_state(const MoeWeights& weights, int64_t tokens, DType dtype, Arena& arena,
                    MoeBuffers& buffers) {
  buffers.state = arena.take_matrix("router_state", tokens, weights.down.out_features, dtype);
}

void take_moe_buffers(const MoeWeights& weights, int64_t tokens, DType dtype, const Ops& ops,
                      Arena& arena, MoeBuffers& buffers) {
  for (TensorView& inner : buffers.inner) {
    inner = arena.take_matrix("router_inner", tokens, weights.down.out_features, dtype);
  }
  buffers.logits = arena.take_matrix("router_logits", tokens, weights.output.out_features, dtype);
  const TensorView x(nullptr, dtype, tokens, weights.down.in_features);
  size_t bytes = ops.linear_workspace(linear_of(weights.down, x, buffers.state, buffers));
  for (const LinearWeight* layer : {&weights.first, &weights.output}) {
    const TensorView& out = layer == &weights.first ? buffers.inner[1] : buffers.logits;
    bytes =
        std::max(bytes, ops.linear_workspace(linear_of(*layer, buffers.inner[0], out, buffers)));
  }
  buffers.linear_workspace = arena.take("router_workspace", bytes);
  buffers.workspace = arena.take("moe_workspace", ops.moe_workspace(moe_of(weights, buffers, x)));
}

void run_moe(const MoeWeights& weights, Activation activation, const MoeBuffers& buffers,
             const TensorView& x, const int32_t* row_count, Ops& ops) {
  const int64_t rows = x.rows();
  const TensorView state = buffers.state.first_rows(rows);
  const TensorView inner = buffers.inner[0].first_rows(rows);
  const TensorView other = buffers.inner[1].first_rows(rows);
  const auto linear = [&](const LinearWeight& weight, const TensorView& from, const TensorView& to,
                          Activation function = Activation::kNone) {
    LinearArgs args = linear_of(weight, from, to, buffers, row_count);
    args.activation = function;
    ops.linear(args);
  };
  if (weights.state_scale == nullptr) {
    linear(weights.down, x, state);
  } else {
    linear(weights.down, x, inner);
    AddScaledArgs add;
    add.x = inner;
    add.residual = state;
    add.residual_scale = weights.state_scale;
    add.out = state;
    add.row_count = row_count;
    ops.add_scaled(add);
  }
  ops.norm({.x = state, .norm = weights.norm, .out = inner, .row_count = row_count});
  linear(weights.first, inner, other, Activation::kGelu);
  linear(weights.second, other, inner, Activation::kGelu);
  MoeArgs args = moe_of(weights, buffers, x, row_count);
  args.activation = activation;
  linear(weights.output, inner, args.logits);
  ops.moe(args);
}

}  // namespace packhorse
