#include "model/loading/weights.h"

#include "model/loading/layer_packer.h"
#include "model/loading/progress.h"
#include "model/loading/tensor_reader.h"

namespace packhorse {
namespace {

// Takes the memory of all weights from an arena and, if the packer has a reader, fills it. One
// routine does both, so that the memory plan cannot differ from the load.
void build(const Spec& spec, LayerPacker packer, ModelWeights& weights) {
  if (const StackSpec* source = spec.source()) {
    LayerPacker of_source = packer.of_source(source->norm);
    weights.source.emplace();
    weights.source->stem = build_stem(spec, *source, nullptr, of_source);
    weights.source->stack = build_stack(*source, of_source);
  }
  const StemWeights* const shared = weights.source ? &weights.source->stem : nullptr;
  weights.stem = build_stem(spec, spec.stack(), shared, packer);
  weights.stack = build_stack(spec.stack(), packer, spec.source());
  weights.heads = build_heads(spec, weights.stem, packer);
}

}  // namespace

ModelWeights plan_weights(const Spec& spec, const Precision& precision, Backend& backend) {
  Arena arena;
  ModelWeights weights;
  build(spec, LayerPacker(spec.stack().norm, precision, backend, arena, nullptr), weights);
  weights.plan = arena.plan();
  return weights;
}

std::shared_ptr<const ModelWeights> load_weights(const Spec& spec, const Precision& precision,
                                                 Backend& backend, const PlannedAllocation& plan,
                                                 const WeightSource& source) {
  const ProgressScope progress(plan.bytes);
  auto weights = std::make_shared<ModelWeights>();
  weights->plan = plan;
  weights->memory = backend.device->allocate(plan.bytes);
  backend.device->populate(*weights->memory, plan.bytes);
  Arena arena(weights->memory->data(), plan);
  const TensorReader reader(source);
  build(spec, LayerPacker(spec.stack().norm, precision, backend, arena, &reader), *weights);
  backend.device->synchronize();
  return weights;
}

}  // namespace packhorse
