// The session over an encoder.
#pragma once

#include <memory>
#include <string>

#include "packhorse/session.h"

namespace packhorse {

/// `options` are checked.
std::shared_ptr<Session> make_encoder_session(const std::string& spec_json,
                                              const WeightSource& source,
                                              const SessionOptions& options);

}  // namespace packhorse
