// Everything that a session loads: the spec, the backend, the memory plan and the weights. Runs do
// not change any of it.
#pragma once

#include <memory>
#include <string>

#include "model/batch.h"
#include "model/heads/outputs.h"
#include "model/spec.h"
#include "model/weights.h"
#include "ops/backend.h"
#include "packhorse/packed_tokens.h"
#include "packhorse/session.h"

namespace packhorse {

struct LoadedModel {
  SessionOptions options;
  std::string spec_json;
  Spec spec;  // without the heads that these options cannot ask for
  PerOutput<OutputLayout> layouts;
  PackedLimits limits;
  Backend backend;
  MemoryPlan plan;
  std::shared_ptr<const ModelWeights> weights;  // shared with other sessions on the same device
};

inline Capacity capacity_of(const SessionOptions& options) {
  return {options.max_tokens, options.max_sequences, options.max_predictions};
}

/// Loads a model. The caller must have checked `options`. Throws InvalidArgument for a wrong spec
/// or wrong weights, RuntimeError if the device or the dtype is not available, and OutOfMemory.
LoadedModel load_model(const std::string& spec_json, const WeightSource& source,
                       const SessionOptions& options);

/// Only computes the memory plan: it reads no weights and allocates nothing.
MemoryPlan plan_model(const std::string& spec_json, const SessionOptions& options);

}  // namespace packhorse
