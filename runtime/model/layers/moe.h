// A mixture of experts, gated feed-forward blocks of which a router chooses one for each token, or
// none.
#pragma once

#include <array>
#include <vector>

#include "core/arena.h"
#include "model/loading/layer_packer.h"
#include "model/spec/spec.h"
#include "ops/args/moe.h"
#include "ops/ops.h"

namespace packhorse {

struct Block;
struct LayerBuffers;
struct StackLoad;
struct StackRun;
struct StackWeights;

/// RouterKind::kState: state = down(x) + state_scale * state of the layer before; logits =
/// output(gelu(second(gelu(first(norm(state)))))).
struct RouterWeights {
  LinearWeight down;                   // [router_size, E]
  const float* state_scale = nullptr;  // [router_size]; null unless RouterSpec::takes_state
  NormWeight norm;
  LinearWeight first;   // [router_size, router_size]
  LinearWeight second;  // [router_size, router_size]
  LinearWeight output;  // [num_classes, router_size]
  const float* balance = nullptr;
  int32_t num_classes = 0;
};

struct MoeWeights {
  RouterWeights router;
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

MoeWeights build_moe(const StackLoad& load, const MoeSpec& spec, int64_t set);

/// Takes the buffer that lives through all layers, if there is such a block, and those of a block.
void take_moe_state(const StackSpec& spec, const StackWeights& weights, int64_t tokens,
                    Arena& arena, LayerBuffers& buffers);
void take_moe(const StackSpec& spec, const StackWeights& weights, int64_t tokens, const Ops& ops,
              Arena& arena, LayerBuffers& buffers);

/// Replaces the input of the block, rows of normed hidden states, by what the block gives, and adds
/// that to the hidden state.
void add(const StackRun& run, const Block& block, const MoeWeights& weights);

}  // namespace packhorse
