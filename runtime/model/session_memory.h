// The memory that a session takes, counted and carved by one routine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/arena.h"
#include "model/encoder.h"
#include "model/output_slots.h"
#include "model/spec.h"
#include "ops/ops.h"
#include "packhorse/session.h"

namespace packhorse {

struct SessionBuffers {
  std::vector<OutputBuffers> slots;  // first: their bytes are nobody else's
  EncoderBuffers encoder;
};

/// The model as a session with these options needs it: without heads that nobody can ask for.
/// Throws as parse_spec does.
Spec parse_spec_for(const SessionOptions& options, const std::string& spec_json);

inline Capacity capacity_of(const SessionOptions& options) {
  return {options.max_tokens, options.max_sequences, options.max_predictions};
}

/// The backend that a session with these options runs on. Throws as make_ops does.
std::unique_ptr<Ops> make_session_ops(const SessionOptions& options);

/// Takes the buffers from the arena (count pass and carve pass alike).
SessionBuffers take_session_buffers(const Spec& spec, const SessionOptions& options, Ops& ops,
                                    Arena& arena);

/// Counts weights, then arena, under the session's memory limit.
MemoryPlan count_memory(const Spec& spec, const SessionOptions& options, Ops& ops);

}  // namespace packhorse
