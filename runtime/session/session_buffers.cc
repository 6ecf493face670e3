#include "session/session_buffers.h"

#include <algorithm>

#include "session/loaded_model.h"
#include "session/output_slots.h"
#include "session/staging.h"

namespace packhorse {

SessionBuffers take_session_buffers(const Spec& spec, const ModelWeights& weights,
                                    const SessionOptions& options, const Backend& backend,
                                    Arena& arena) {
  const Capacity capacity = capacity_of(options);
  SessionBuffers buffers;
  // On the CPU, results are in host memory anyway, so no slots are needed.
  if (backend.device->io() != nullptr) {
    buffers.slots = take_output_slots(output_layouts(spec, capacity), capacity, weights.stem.dtype,
                                      options.output_slots, arena);
  }
  buffers.inputs =
      arena.take_array<int32_t>("inputs", static_cast<size_t>(InputLayout(capacity).size));
  const StemSpec& stem = spec.stack().stem;
  if (const int64_t columns = std::max(stem.patches.features, stem.rows.features); columns > 0) {
    buffers.features = arena.take_matrix("features", capacity.max_tokens, columns, DType::kFloat32);
  }
  buffers.model = take_model_buffers(spec, weights, capacity, *backend.ops, arena);
  return buffers;
}

}  // namespace packhorse
