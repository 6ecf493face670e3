// The memory that a session takes, counted and carved by one routine.
#pragma once

#include <vector>

#include "core/arena.h"
#include "model/encoder.h"
#include "model/output_slots.h"
#include "model/spec.h"
#include "ops/ops.h"
#include "packhorse/session.h"

namespace packhorse {

struct SessionBuffers {
  std::vector<OutputSlot> slots;  // first: their bytes are nobody else's
  EncoderBuffers encoder;
};

/// Takes the buffers from the arena (count pass and carve pass alike).
SessionBuffers take_session_buffers(const Spec& spec, const SessionOptions& options, Ops& ops,
                                    Arena& arena);

/// Counts weights, then arena, under the session's memory limit.
MemoryPlan count_memory(const Spec& spec, const SessionOptions& options, Ops& ops);

}  // namespace packhorse
