// What a session has loaded: the spec, the backend, the memory plan and the weights. Nothing of it
// changes by a run.
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
  Spec spec;  // as a session with these options needs it: without heads that nobody can ask for
  PerOutput<OutputLayout> layouts;
  PackedLimits limits;
  Backend backend;
  MemoryPlan plan;
  std::shared_ptr<const ModelWeights> weights;  // shared by sessions of one device
};

inline Capacity capacity_of(const SessionOptions& options) {
  return {options.max_tokens, options.max_sequences, options.max_predictions};
}

/// `options` are checked. Throws InvalidArgument (spec, weights), RuntimeError (device, dtype) or
/// OutOfMemory.
LoadedModel load_model(const std::string& spec_json, const WeightSource& source,
                       const SessionOptions& options);

/// The plan alone: no weights are read, nothing is allocated.
MemoryPlan plan_model(const std::string& spec_json, const SessionOptions& options);

}  // namespace packhorse
