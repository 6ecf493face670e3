// The session over a runner of steps.
#pragma once

#include <memory>

#include "generation/runner/step_runner.h"

namespace packhorse {

/// Starts the engine. `options` are checked (check_options).
std::shared_ptr<GenerationSession> make_generation_session(std::unique_ptr<StepRunner> runner,
                                                           const GenerationOptions& options);

}  // namespace packhorse
