// A mixture of experts in place of a feed-forward block.
#pragma once

#include <array>
#include <vector>

#include "core/arena.h"
#include "model/loading/layer_packer.h"
#include "model/loading/stack_layouts.h"
#include "model/spec/spec.h"
#include "ops/args/moe.h"
#include "ops/ops.h"

namespace packhorse {

/// Of one layer. The router: state = down(x) + state_scale * state of the layer before; logits =
/// output(gelu(second(gelu(first(norm(state)))))).
struct MoeWeights {
  LinearWeight down;                   // [router_size, E]
  const float* state_scale = nullptr;  // [router_size]; null in the first layer
  NormWeight norm;
  LinearWeight first;   // [router_size, router_size]
  LinearWeight second;  // the same
  LinearWeight output;  // [num_classes, router_size]
  const float* balance = nullptr;
  int32_t num_classes = 0;
  std::vector<ExpertWeights> experts;
};

/// T is max_tokens.
struct MoeBuffers {
  TensorView state;                 // [T, router_size], kept through all layers
  std::array<TensorView, 2> inner;  // [T, router_size], used inside blocks, like all that follow
  TensorView logits;                // [T, num_classes]
  void* linear_workspace = nullptr;
  void* workspace = nullptr;
};

MoeWeights build_moe(const Spec& spec, int64_t index, const StackLayouts& layouts,
                     LayerPacker& packer);

/// The buffer that lives through all layers, and after it those of a block.
void take_moe_state(const MoeWeights& weights, int64_t tokens, DType dtype, Arena& arena,
                    MoeBuffers& buffers);
void take_moe_buffers(const MoeWeights& weights, int64_t tokens, DType dtype, const Ops& ops,
                      Arena& arena, MoeBuffers& buffers);

/// Replaces the input of the block, rows of normed hidden states, by what the block gives.
/// `row_count`: as LinearArgs has it.
void run_moe(const MoeWeights& weights, Activation activation, const MoeBuffers& buffers,
             const TensorView& x, const int32_t* row_count, Ops& ops);

}  // namespace packhorse
