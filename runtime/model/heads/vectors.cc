#include "model/heads/vectors.h"

#include "core/format.h"

namespace packhorse {

std::vector<DenseWeights> build_vectors(const Spec& spec, LayerPacker& packer) {
  const std::vector<DenseSpec>& layers = spec.heads.vectors->layers;
  return build_dense_layers(
      layers, whole(spec.stack().hidden_size), packer.width(spec.stack().hidden_size),
      [&](size_t i) {
        return i + 1 < layers.size() ? concat("vectors.dense.", i) : std::string("vectors");
      },
      packer);
}

DenseBuffers take_vectors(const std::vector<DenseWeights>& weights, const HeadArena& arena) {
  return take_dense_layers(weights, arena.capacity.max_tokens, "vectors", arena);
}

void make_vectors(const HeadRun& run, const VectorsSpec& spec,
                  const std::vector<DenseWeights>& weights, const DenseBuffers& buffers,
                  const TensorView& out) {
  const TensorView x = run_dense_layers(run, run.hidden, spec.layers, weights, buffers);
  run.finish(x, out, OutputRows::kTokens, spec.normalize);
}

}  // namespace packhorse
