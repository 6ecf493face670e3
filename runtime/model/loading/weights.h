// The weights of one model on one device: typed views into a single allocation.
#pragma once

#include <memory>
#include <optional>

#include "core/arena.h"
#include "model/heads/heads.h"
#include "model/layers/stack.h"
#include "model/loading/precision.h"
#include "model/spec/spec.h"
#include "model/stem/tokens.h"
#include "ops/backend.h"
#include "packhorse/weight_source.h"

namespace packhorse {

/// The weights of the stack that reads sources.
struct SourceWeights {
  StemWeights stem;
  StackWeights stack;
};

struct ModelWeights {
  std::optional<SourceWeights> source;  // where Spec::source
  StemWeights stem;
  StackWeights stack;  // the last one's
  HeadWeights heads;

  PlannedAllocation plan;
  std::unique_ptr<DeviceMemory> memory;
};

/// Lays the weights out without reading any: the result has sizes and dtypes, but no data.
ModelWeights plan_weights(const Spec& spec, const Precision& precision, Backend& backend);

/// Reads, checks and packs the weights (docs/developer/tensors.md lists names and shapes). Throws
/// InvalidArgument naming the tensor that is missing, has another shape, or holds NaN or Inf.
std::shared_ptr<const ModelWeights> load_weights(const Spec& spec, const Precision& precision,
                                                 Backend& backend, const PlannedAllocation& plan,
                                                 const WeightSource& source);

}  // namespace packhorse
