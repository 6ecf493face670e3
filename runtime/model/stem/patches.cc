#include "model/stem/patches.h"

namespace packhorse {
namespace {

LinearArgs projection_of(const PatchWeights& weights, const PatchBuffers& buffers,
                         const TensorView& x) {
  LinearArgs args;
  args.x = x;
  args.weight = weights.projection;
  args.workspace = buffers.workspace;
  return args;
}

}  // namespace

PatchWeights build_patches(const StackSpec& stack, const std::string& name, LayerPacker& packer) {
  const PatchesSpec& spec = stack.stem.patches;
  PatchWeights weights;
  weights.projection = packer.dense(name + "patch", stack.hidden_size, spec.features, spec.bias);
  if (spec.prefix > 0) {
    weights.prefix = packer.table(name + "prefix", spec.prefix, stack.hidden_size);
  }
  if (spec.grid_rows > 0) {
    weights.positions =
        packer.table(name + "position", spec.grid_rows * spec.grid_columns, stack.hidden_size);
  }
  return weights;
}

PatchBuffers take_patch_buffers(const PatchWeights& weights, int64_t features, DType dtype,
                                const Capacity& capacity, const Ops& ops, Arena& arena) {
  const LinearWeight& projection = weights.projection;
  PatchBuffers buffers;
  if (dtype != DType::kFloat32 || projection.in_features != features) {
    buffers.rounded =
        arena.take_matrix("patches", capacity.max_tokens, projection.in_features, dtype);
  }
  buffers.projected =
      arena.take_matrix("embedded", capacity.max_tokens, projection.out_features, dtype);
  const TensorView x(nullptr, dtype, capacity.max_tokens, projection.in_features);
  buffers.workspace =
      arena.take("embedding_workspace", ops.linear_workspace(projection_of(weights, buffers, x)));
  return buffers;
}

TensorView project_patches(const PatchWeights& weights, const PatchBuffers& buffers,
                           const TensorView& features, const int32_t* row_count, Ops& ops) {
  TensorView x = features;
  if (buffers.rounded) {
    x = buffers.rounded.first_rows(features.rows());
    ops.cast({.x = features, .out = x, .padding = x.columns() - features.columns()});
  }
  LinearArgs projection = projection_of(weights, buffers, x);
  projection.out = buffers.projected.first_rows(features.rows());
  projection.row_count = row_count;
  ops.linear(projection);
  return projection.out;
}

void embed_patches(const PatchesSpec& spec, const PatchWeights& weights, const NormWeight& norm,
                   const PatchBuffers& buffers, const TokenBatch& tokens, const TensorView& hidden,
                   Ops& ops) {
  // Tokens are no fewer than patches.
  const TensorView projected =
      project_patches(weights, buffers, tokens.features, tokens.batch.counts, ops);
  const TensorView rows = hidden.first_rows(tokens.batch.num_tokens);
  ops.embed_patches({.x = projected,
                     .prefix = weights.prefix,
                     .positions = {.table = weights.positions,
                                   .rows = spec.grid_rows,
                                   .columns = spec.grid_columns,
                                   .resize = spec.resize},
                     .grids = tokens.grids,
                     .batch = tokens.batch,
                     .out = rows});
  if (norm) {
    ops.norm({.x = rows, .norm = norm, .out = rows, .row_count = tokens.batch.counts});
  }
}

}  // namespace packhorse
