// The session that runs an encoder.
#pragma once

#include <memory>
#include <string>

#include "packhorse/session.h"
#include "session/loaded_model.h"

namespace packhorse {

/// Loads the model of an encoder session. The caller must have checked `options`. Throws
/// InvalidArgument for a wrong spec or wrong weights, RuntimeError if the device or the dtype is
/// not available, and OutOfMemory.
LoadedModel load_encoder(const std::string& spec_json, const WeightSource& source,
                         const SessionOptions& options);

/// Throws as load_encoder does.
std::shared_ptr<Session> make_encoder_session(const std::string& spec_json,
                                              const WeightSource& source,
                                              const SessionOptions& options);

/// The plan alone: reads no weights and allocates nothing.
MemoryPlan plan_encoder_session(const std::string& spec_json, const SessionOptions& options);

}  // namespace packhorse
