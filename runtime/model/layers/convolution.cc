#include "model/layers/convolution.h"

#include "model/layers/residual.h"

namespace packhorse {
namespace {

LinearArgs args_of(const ConvolutionWeights& weights, const LayerBuffers& buffers, int64_t rows) {
  LinearArgs args;
  args.x = buffers.convolution.unfolded.first_rows(rows);
  args.weight = weights.linear;
  args.residual = buffers.hidden.first_rows(rows);
  args.out = args.residual;
  args.workspace = buffers.convolution.workspace;
  return args;
}

}  // namespace

std::optional<ConvolutionWeights> build_convolution(const StackSpec& spec, LayerPacker& packer) {
  if (spec.convolution.width == 0) return std::nullopt;
  ConvolutionWeights weights;
  weights.linear = packer.convolution(spec.prefix + "convolution", spec.hidden_size,
                                      spec.hidden_size, spec.convolution.width);
  weights.norm = packer.norm(spec.prefix + "convolution.norm", spec.hidden_size);
  return weights;
}

void take_convolution(const std::optional<ConvolutionWeights>& weights, int64_t tokens,
                      const Ops& ops, Arena& arena, LayerBuffers& buffers) {
  if (!weights) return;
  buffers.convolution.unfolded =
      arena.take_matrix("unfold", tokens, weights->linear.in_features, buffers.hidden.dtype);
  buffers.convolution.workspace =
      arena.take("convolution_workspace", ops.linear_workspace(args_of(*weights, buffers, tokens)));
}

void unfold_input(const StackRun& run) {
  if (!run.weights.convolution) return;
  run.ops.unfold({.x = run.hidden(),
                  .width = static_cast<int32_t>(run.spec.convolution.width),
                  .batch = run.batch,
                  .out = run.rows(run.buffers.convolution.unfolded)});
}

void add_convolution(const StackRun& run) {
  if (!run.weights.convolution) return;
  LinearArgs args = args_of(*run.weights.convolution, run.buffers, run.batch.num_tokens);
  args.activation = run.spec.convolution.activation;
  set_norm(args, run, run.weights.convolution->norm, run.spec.layers.size() > 1);
  args.row_count = run.batch.counts;
  run.ops.linear(args);
}

}  // namespace packhorse
