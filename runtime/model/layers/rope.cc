#include "model/layers/rope.h"

#include "core/format.h"
#include "model/layers/positions.h"
#include "model/layers/stack_run.h"

namespace packhorse {
namespace {

// The first rotation of a stack, which most stacks have alone, goes without a name.
std::string prefix(const StackSpec& spec, size_t index) {
  return spec.prefix + (index == 0 ? "" : spec.ropes[index].name + "_");
}

}  // namespace

std::vector<const float*> build_ropes(const StackSpec& spec, LayerPacker& packer) {
  std::vector<const float*> result;
  for (size_t i = 0; i < spec.ropes.size(); ++i) {
    const RopeSpec& rope = spec.ropes[i];
    std::vector<float> frequencies =
        rope.frequencies.empty()
            ? rope_frequencies(rope.theta, rope.grid ? rope.dims / 2 : rope.dims, rope.factor)
            : rope.frequencies;
    if (rope.grid) {  // those of columns of cells, and those of rows
      const std::vector<float> axis = frequencies;
      frequencies.insert(frequencies.end(), axis.begin(), axis.end());
    }
    result.push_back(packer.constants(prefix(spec, i) + "rope_frequencies", frequencies));
  }
  return result;
}

std::vector<TensorView> take_rotations(const StackSpec& spec, int64_t tokens, const Ops& ops,
                                       Arena& arena) {
  std::vector<TensorView> result;
  for (size_t i = 0; i < spec.ropes.size(); ++i) {
    const RopeSpec& rope = spec.ropes[i];
    result.push_back(arena.take_matrix(prefix(spec, i) + "rotation", tokens,
                                       ops.rotation_columns(rope.dims, rope.grid),
                                       DType::kFloat32));
  }
  return result;
}

void make_rotations(const StackRun& run, const int32_t* position_ids) {
  for (size_t i = 0; i < run.spec.ropes.size(); ++i) {
    run.ops.rotation({.frequencies = run.weights.rope_frequencies[i],
                      .dims = static_cast<int32_t>(run.spec.ropes[i].dims),
                      .position_ids = position_ids,
                      .grids = run.spec.ropes[i].grid ? run.grids : nullptr,
                      .prefix = run.prefix,
                      .batch = run.batch,
                      .out = run.buffers.rotations[i].first_rows(run.batch.num_tokens)});
  }
}

int64_t paired_columns(const StackSpec& spec, const LayerPacker& packer) {
  if (spec.ropes.empty()) return 0;
  const RopeSpec& rope = spec.ropes.front();
  const bool device = packer.backend().ops->interleaves_heads();
  if (device == rope.interleaved) return 0;
  return device ? rope.dims : -rope.dims;
}

}  // namespace packhorse
