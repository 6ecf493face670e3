// The weights of one model on one device: typed views into a single allocation.
#pragma once

#include <memory>

#include "core/arena.h"
#include "model/heads/heads.h"
#include "model/precision.h"
#include "model/spec.h"
#include "model/stack_weights.h"
#include "model/stem.h"
#include "ops/backend.h"
#include "packhorse/weight_source.h"

namespace packhorse {

struct ModelWeights {
  StemWeights stem;
  StackWeights stack;
  HeadWeights heads;

  PlannedAllocation plan;
  std::unique_ptr<DeviceMemory> memory;
};

/// What the weights will be, without reading any: sizes and dtypes, no data.
ModelWeights plan_weights(const Spec& spec, const Precision& precision, Backend& backend);

/// Reads, checks and packs the weights (names and shapes: docs/weights.md). Throws InvalidArgument
/// naming the tensor that is missing, of another shape, or holds NaN or Inf.
std::shared_ptr<const ModelWeights> load_weights(const Spec& spec, const Precision& precision,
                                                 Backend& backend, const PlannedAllocation& plan,
                                                 const WeightSource& source);

}  // namespace packhorse
