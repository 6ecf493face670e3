#include "model/heads/token_weights.h"

namespace packhorse {

LinearWeight build_token_weights(const Spec& spec, LayerPacker& packer) {
  return packer.padded_dense("token_weights", 1, spec.stack().hidden_size, true);
}

HeadScratch take_token_weights(const LinearWeight& weight, const HeadArena& arena) {
  const int64_t rows = arena.capacity.max_tokens;
  return {
      .padded = arena.matrix("padded_token_weights", rows, weight.out_features),
      .workspace = arena.workspace("token_weights_workspace", arena.workspace_of(rows, weight))};
}

void make_token_weights(const HeadRun& run, const LinearWeight& weight, const HeadScratch& buffers,
                        const TensorView& out) {
  const TensorView padded = buffers.padded.first_rows(out.rows());
  run.dense(run.hidden, weight, padded, buffers.workspace, Activation::kRelu);
  run.finish(padded, out, OutputRows::kTokens);
}

}  // namespace packhorse
