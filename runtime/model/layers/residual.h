// The hidden state between blocks: what a block computes from, and how its result is added.
#pragma once

#include "model/layers/stack.h"
#include "model/layers/stack_run.h"

namespace packhorse {

/// Writes the hidden state, or its norm if there is one, in e4m3 alone.
void quantize(const StackRun& run, const NormWeight& norm);
/// Computes the input of a block, where it is not the hidden state as it is.
void make_block_input(const StackRun& run, const Block& block);
/// The input of a block: the hidden state, or in pre-norm models its norm; either in e4m3 if that
/// is what the block reads.
TensorView block_input(const StackRun& run, const Block& block);

/// Sets the input of a block's first layer to the largest that there is. Runs replace `x`.
template <class Args>
void set_input(Args& args, const LinearWeight& weight, const LayerBuffers& buffers, int64_t rows) {
  if (weight.dtype == DType::kFloat8) {
    args.x = buffers.quantized.values.first_rows(rows);
    args.x_scales.rows = buffers.quantized.scales;
  } else {
    args.x = buffers.hidden.first_rows(rows);
  }
}

/// Adds the result of a block's last layer to the hidden state, or keeps it apart if it has a norm
/// first or is scaled.
template <class Args>
void set_result(Args& args, const StackSpec& spec, const LayerBuffers& buffers, int64_t rows) {
  const TensorView hidden = buffers.hidden.first_rows(rows);
  const bool apart = spec.output_norms() || spec.residual_scales;
  if (!apart) args.residual = hidden;
  args.out = apart ? buffers.normed.first_rows(rows) : hidden;
}

/// Sets the norm of the sum, whose result is also quantised if a block that follows (`read`) reads
/// it in e4m3.
template <class Args>
void set_norm(Args& args, const StackRun& run, const NormWeight& norm, bool read) {
  args.norm = norm;
  if (!read || !run.weights.float8) return;
  args.quantized = {run.buffers.quantized.values.first_rows(args.x.rows()),
                    run.buffers.quantized.scales};
}

/// Adds a result that was kept apart: its norm, if there is such a norm, or scaled.
void add_result(const StackRun& run, const Block& block);
/// Scales the embeddings, if residuals are scaled.
void scale_embeddings(const StackRun& run);

}  // namespace packhorse
