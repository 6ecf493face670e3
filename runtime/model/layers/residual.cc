#include "model/layers/residual.h"

namespace packhorse {
namespace {

void add_scaled(const StackRun& run, const ResidualScales& scales) {
  run.ops.add_scaled({.x = run.rows(run.buffers.normed),
                      .x_shift = scales.output_shift,
                      .x_scale = scales.output_scale,
                      .residual = run.hidden(),
                      .residual_shift = scales.residual_shift,
                      .residual_scale = scales.residual_scale,
                      .out = run.hidden(),
                      .row_count = run.batch.counts});
}

}  // namespace

void quantize(const StackRun& run, const NormWeight& norm) {
  NormArgs args;
  args.x = run.hidden();
  args.norm = norm;
  args.row_count = run.batch.counts;
  args.quantized = {run.rows(run.buffers.quantized.values), run.buffers.quantized.scales};
  run.ops.norm(args);
}

void make_block_input(const StackRun& run, const Block& block) {
  if (!run.spec.pre_norm() || block.spec.norm == BlockNorm::kShared) return;
  if (run.weights.float8) return quantize(run, block.weights.norm);
  if (block.spec.norm == BlockNorm::kNone) return;
  run.ops.norm({.x = run.hidden(),
                .norm = block.weights.norm,
                .out = run.rows(run.buffers.normed),
                .row_count = run.batch.counts});
}

TensorView block_input(const StackRun& run, const Block& block) {
  if (run.weights.float8) return run.rows(run.buffers.quantized.values);
  const bool normed = run.spec.pre_norm() && block.spec.norm != BlockNorm::kNone;
  return normed ? run.rows(run.buffers.normed) : run.hidden();
}

void add_result(const StackRun& run, const Block& block) {
  if (block.weights.output_norm) {
    run.ops.norm({.x = run.rows(run.buffers.normed),
                  .norm = block.weights.output_norm,
                  .out = run.hidden(),
                  .added = run.hidden(),
                  .row_count = run.batch.counts});
  }
  const bool moe = std::holds_alternative<MoeWeights>(block.weights.kind);
  if (run.spec.residual_scales || moe) add_scaled(run, block.weights.scales);
}

void scale_embeddings(const StackRun& run) {
  if (!run.spec.residual_scales) return;
  AddScaledArgs args;
  args.x = args.out = run.hidden();
  args.x_shift = run.weights.scales.output_shift;
  args.x_scale = run.weights.scales.output_scale;
  args.row_count = run.batch.counts;
  run.ops.add_scaled(args);
}

}  // namespace packhorse
