// Settings of a request are checked here, once.
#pragma once

#include "generation/runner/step_runner.h"

namespace packhorse {

/// Throws InvalidArgument naming the setting, what was found and what was expected.
/// `num_stop_ids`: tokens that end a sequence of the request.
void check_sampling(const Sampling& sampling, size_t num_stop_ids, const RunnerLimits& limits);

/// Throws InvalidArgument naming the option that no runner can take, and what was expected.
void check_options(const GenerationOptions& options);

}  // namespace packhorse
