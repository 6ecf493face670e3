// The steps of a real model: its stem, its stack over the pages of a cache, its language model
// head, and the choice of tokens.
#pragma once

#include <memory>
#include <string>

#include "generation/runner/step_runner.h"
#include "packhorse/generation.h"
#include "packhorse/weight_source.h"

namespace packhorse {

/// Throws InvalidArgument (spec without a language model head or with what has no cache, options,
/// weights), RuntimeError (device, dtype) or OutOfMemory naming what does not fit.
std::unique_ptr<StepRunner> load_model_runner(const std::string& spec_json,
                                              const WeightSource& source,
                                              const GenerationOptions& options);

/// The plan alone: no weights are read and nothing is allocated.
GenerationMemoryPlan plan_model_runner(const std::string& spec_json,
                                       const GenerationOptions& options);

}  // namespace packhorse
