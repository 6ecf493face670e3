// The arena of a session: counted and carved by one routine.
#pragma once

#include <vector>

#include "core/arena.h"
#include "model/encoder.h"
#include "ops/backend.h"
#include "packhorse/session.h"

namespace packhorse {

struct SessionBuffers {
  std::vector<OutputBuffers> slots;  // first: their bytes are nobody else's
  int32_t* inputs = nullptr;         // as InputLayout says
  ModelBuffers model;
};

/// Of the weights, sizes and dtypes are looked at.
SessionBuffers take_session_buffers(const Spec& spec, const ModelWeights& weights,
                                    const SessionOptions& options, const Backend& backend,
                                    Arena& arena);

}  // namespace packhorse
