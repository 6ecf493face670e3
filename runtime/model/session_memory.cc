#include "model/session_memory.h"

#include "core/format.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace packhorse {

Spec parse_spec_for(const SessionOptions& options, const std::string& spec_json) {
  Spec spec = parse_spec(spec_json);
  const bool has_head = spec.heads.masked_lm.has_value();
  if (has_head && options.max_predictions == 0 && !spec.heads.masked_lm->sparse)
    spec.heads.masked_lm.reset();
  if (!has_head && options.max_predictions > 0) {
    throw InvalidArgument(concat("max_predictions is ", options.max_predictions,
                                 ", but this model has no 'heads.masked_lm': expected 0"));
  }
  return spec;
}

std::unique_ptr<Ops> make_session_ops(const SessionOptions& options) {
  return make_ops(options.device, {.threads = options.threads,
                                   .pin_threads = options.pin_threads,
                                   .attention = options.attention_algorithm});
}

SessionBuffers take_session_buffers(const Spec& spec, const SessionOptions& options, Ops& ops,
                                    Arena& arena) {
  const Capacity capacity = capacity_of(options);
  SessionBuffers buffers;
  buffers.slots = take_output_slots(spec, capacity, ops.activation_dtype(options.dtype),
                                    options.output_slots, ops, arena);
  buffers.encoder = take_buffers(spec, capacity, options.dtype, ops, arena);
  return buffers;
}

MemoryPlan count_memory(const Spec& spec, const SessionOptions& options, Ops& ops) {
  MemoryPlan plan;
  const std::optional<size_t> limit = options.memory_limit;
  plan.weights = plan_weights(spec, options.dtype, ops);
  if (limit && plan.weights.bytes > *limit) {
    throw OutOfMemory(concat("the weights take ", plan.weights.bytes, " bytes as ",
                             name_of(options.dtype), ", memory_limit is ", *limit,
                             ": raise it, or choose a dtype that takes less"));
  }
  try {
    Arena arena(limit ? std::optional<size_t>(*limit - plan.weights.bytes) : std::nullopt);
    take_session_buffers(spec, options, ops, arena);
    plan.arena = arena.plan();
  } catch (const OutOfMemory& error) {
    if (!limit) throw;
    throw OutOfMemory(concat(error.message(), " (memory_limit is ", *limit,
                             " bytes, of which the weights take ", plan.weights.bytes,
                             "; lower max_tokens, max_sequences or output_slots, or raise "
                             "memory_limit)"));
  }
  return plan;
}

}  // namespace packhorse
