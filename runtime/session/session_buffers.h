// The buffers in a session's arena. One routine both counts and carves them, so that the two cannot
// differ.
#pragma once

#include <vector>

#include "core/arena.h"
#include "model/transformer.h"
#include "ops/backend.h"
#include "packhorse/session.h"

namespace packhorse {

struct SessionBuffers {
  std::vector<OutputBuffers> slots;  // taken first: they share no bytes with other buffers
  int32_t* inputs = nullptr;         // [InputLayout::size]
  TensorView features;               // [max_tokens, elements of a patch or row], or empty
  ModelBuffers model;
};

/// Takes all buffers from the arena. Of the weights it reads sizes and dtypes only, so those of
/// plan_weights suffice.
SessionBuffers take_session_buffers(const Spec& spec, const ModelWeights& weights,
                                    const SessionOptions& options, const Backend& backend,
                                    Arena& arena);

}  // namespace packhorse
