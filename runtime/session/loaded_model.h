// Everything that a session loads: the spec, the backend, the memory plan and the weights. Runs do
// not change any of it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/arena.h"
#include "model/batch.h"
#include "model/heads/output_layout.h"
#include "model/loading/precision.h"
#include "model/loading/weights.h"
#include "model/spec/spec.h"
#include "ops/backend.h"
#include "packhorse/packed_patches.h"
#include "packhorse/packed_tokens.h"
#include "packhorse/session.h"

namespace packhorse {

struct LoadedModel {
  SessionOptions options;
  std::string spec_json;
  Spec spec;  // without the heads that these options cannot ask for
  PerOutput<OutputLayout> layouts;
  PackedLimits limits;
  PatchLimits patch_limits;
  Backend backend;
  Precision precision;
  MemoryPlan plan;
  std::shared_ptr<const ModelWeights> weights;  // shared with other sessions on the same device
};

/// True if batches are images, and not ids.
inline bool takes_patches(const Spec& spec) { return spec.stack().stem.kind == StemKind::kPatches; }

inline Capacity capacity_of(const SessionOptions& options) {
  return {options.max_tokens, options.max_sequences, options.max_predictions};
}

/// Parses the spec and opens the device: everything except the plan and the weights. The caller
/// must have checked `options`. Throws InvalidArgument for a wrong spec and RuntimeError if the
/// device or the dtype is not available.
LoadedModel open_model(const std::string& spec_json, const SessionOptions& options);

/// Takes the buffers of a session from the arena. Of the weights it reads sizes and dtypes only.
using TakeBuffers = std::function<void(const ModelWeights& weights, Arena& arena)>;

/// Fills in the plan: the memory of the weights, and that of the arena which `take` counts. Throws
/// OutOfMemory if they exceed the memory limit of the options.
void count_memory(LoadedModel& model, const TakeBuffers& take);

/// Fills in the weights of a model with a plan: those of another live session with the same device,
/// dtype, spec and files, or newly loaded ones. Throws as load_weights does.
void load_weights(LoadedModel& model, const WeightSource& source);

}  // namespace packhorse
