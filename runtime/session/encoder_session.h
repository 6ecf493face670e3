// The session that runs an encoder.
#pragma once

#include <memory>
#include <string>

#include "packhorse/session.h"

namespace packhorse {

/// The caller must have checked `options`.
std::shared_ptr<Session> make_encoder_session(const std::string& spec_json,
                                              const WeightSource& source,
                                              const SessionOptions& options);

}  // namespace packhorse
