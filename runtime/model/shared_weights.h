// Loaded weights, shared by the sessions of one device that load the same files in the same dtype.
#pragma once

#include <memory>
#include <string>

#include "model/spec.h"
#include "model/weights.h"
#include "ops/ops.h"
#include "packhorse/memory_plan.h"
#include "packhorse/session.h"
#include "packhorse/weight_source.h"

namespace packhorse {

/// Those of a session that is still there, or loaded now.
std::shared_ptr<const ModelWeights> load_shared_weights(const Spec& spec,
                                                        const std::string& spec_json,
                                                        const SessionOptions& options, Ops& ops,
                                                        const PlannedAllocation& plan,
                                                        const WeightSource& source);

}  // namespace packhorse
