#include "model/heads/pooler.h"

namespace packhorse {

LinearWeight build_pooler(const Spec& spec, LayerPacker& packer) {
  return packer.dense("pooler", spec.stack().hidden_size, spec.stack().hidden_size);
}

HeadScratch take_pooler(const LinearWeight& weight, const HeadArena& arena) {
  const int64_t rows = arena.capacity.max_sequences;
  return {.input = arena.matrix("pooler_input", rows, weight.in_features),
          .workspace = arena.workspace("pooler_workspace", arena.workspace_of(rows, weight))};
}

void make_pooled(const HeadRun& run, Activation activation, const LinearWeight& weight,
                 const HeadScratch& buffers, const TensorView& out) {
  const TensorView input = buffers.input.first_rows(out.rows());
  run.pool(Pooling::kCls, input);
  run.dense(input, weight, out, buffers.workspace, activation);
  run.finish(out, out, OutputRows::kSequences);
}

}  // namespace packhorse
