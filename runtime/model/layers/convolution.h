// A convolution over what enters the first layer of a stack, which is added to what leaves it.
#pragma once

#include <optional>

#include "core/arena.h"
#include "model/loading/layer_packer.h"
#include "model/spec/spec.h"
#include "ops/ops.h"

namespace packhorse {

struct LayerBuffers;
struct StackRun;

struct ConvolutionWeights {
  LinearWeight linear;  // [E, width * E]
  NormWeight norm;
};

struct ConvolutionBuffers {
  /// [T, width * E], the input of the convolution; kept until the first layer is done.
  TensorView unfolded;
  void* workspace = nullptr;
};

/// None if the spec has none.
std::optional<ConvolutionWeights> build_convolution(const StackSpec& spec, LayerPacker& packer);
void take_convolution(const std::optional<ConvolutionWeights>& weights, int64_t tokens,
                      const Ops& ops, Arena& arena, LayerBuffers& buffers);
/// Keeps the input of the first layer, if there is a convolution.
void unfold_input(const StackRun& run);
/// After the first layer: hidden = norm(hidden + activation(convolution of its input)).
void add_convolution(const StackRun& run);

}  // namespace packhorse
