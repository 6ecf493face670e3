#include "session/loaded_model.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>

#include "core/format.h"

namespace packhorse {
namespace {

Spec parse_spec_for(const SessionOptions& options, const std::string& spec_json) {
  Spec spec = parse_spec(spec_json);
  std::optional<MaskedLmSpec>& head = spec.heads.masked_lm;
  const bool predicts = options.max_predictions > 0;
  if (!head && !spec.heads.lm && predicts) {
    throw InvalidArgument(
        concat("max_predictions is ", options.max_predictions,
               ", but this model has no 'heads.masked_lm' or 'heads.lm': expected 0"));
  }
  if (head && !predicts && !head->sparse) head.reset();
  if (!predicts) spec.heads.lm.reset();
  return spec;
}

PackedLimits limits_of(const Spec& spec, const SessionOptions& options) {
  return {.max_tokens = options.max_tokens,
          .max_sequences = options.max_sequences,
          .max_seqlen = spec.max_seqlen,
          .vocab_size = spec.stack().stem.vocab_size,
          .type_vocab_size = std::max<int64_t>(1, spec.stack().stem.type_vocab_size),
          .num_positions = spec.stack().stem.num_positions - spec.stack().stem.position_offset,
          .max_predictions = spec.heads.masked_lm || spec.heads.lm ? options.max_predictions : 0,
          .feature_columns = spec.stack().stem.rows.features,
          .feature_id = spec.stack().stem.rows.id};
}

}  // namespace

LoadedModel open_model(const std::string& spec_json, const SessionOptions& options) {
  LoadedModel model;
  model.options = options;
  model.spec_json = spec_json;
  model.spec = parse_spec_for(options, spec_json);
  model.layouts = output_layouts(model.spec, capacity_of(options));
  model.limits = limits_of(model.spec, options);
  const PatchesSpec& patches = model.spec.stack().stem.patches;
  model.patch_limits = {.max_tokens = options.max_tokens,
                        .max_sequences = options.max_sequences,
                        .max_seqlen = model.spec.max_seqlen,
                        .columns = patches.features,
                        .prefix = patches.prefix};
  model.backend = make_backend(options.device, {.threads = options.threads,
                                                .pin_threads = options.pin_threads,
                                                .attention = options.attention_algorithm});
  const int64_t most = std::min(options.max_tokens, model.spec.max_seqlen);
  if (takes_patches(model.spec) && most <= patches.prefix) {
    throw InvalidArgument(concat("max_tokens is ", options.max_tokens, ", max_seqlen ",
                                 model.spec.max_seqlen, "; expected at least ", patches.prefix + 1,
                                 ", the tokens of the smallest image"));
  }
  if (model.spec.stack().stem.rows.features > 0 && !model.backend.ops->takes_rows()) {
    throw RuntimeError(concat("this model takes rows beside token ids, for which ",
                              name_of(options.device),
                              " has no kernels: load it on the device cpu"));
  }
  model.precision =
      precision_of(options.dtype, model.spec.heads.lm.has_value(), *model.backend.packer);
  model.precision.groups = model.spec.quantized;
  return model;
}

void count_memory(LoadedModel& model, const TakeBuffers& take) {
  MemoryPlan& plan = model.plan;
  const std::optional<size_t> limit = model.options.memory_limit;
  const ModelWeights weights = plan_weights(model.spec, model.precision, model.backend);
  plan.weights = weights.plan;
  if (limit && plan.weights.bytes > *limit) {
    throw OutOfMemory(concat("the weights take ", plan.weights.bytes, " bytes as ",
                             model.spec.quantized.empty() ? name_of(model.options.dtype) : "stored",
                             ", memory_limit is ", *limit,
                             ": raise it, or choose a dtype that takes less"));
  }
  try {
    Arena arena(limit ? std::optional<size_t>(*limit - plan.weights.bytes) : std::nullopt);
    take(weights, arena);
    plan.arena = arena.plan();
  } catch (const OutOfMemory& error) {
    if (!limit) throw;
    throw OutOfMemory(concat(error.message(), " (memory_limit is ", *limit,
                             " bytes, of which the weights take ", plan.weights.bytes,
                             "; lower max_tokens, max_sequences or output_slots, or raise "
                             "memory_limit)"));
  }
}

void load_weights(LoadedModel& model, const WeightSource& source) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<const ModelWeights>> loaded;
  const auto load = [&] {
    return load_weights(model.spec, model.precision, model.backend, model.plan.weights, source);
  };
  const std::string identity = source.identity();
  if (identity.empty()) {
    model.weights = load();
    return;
  }
  const SessionOptions& options = model.options;
  const std::string key =
      concat(name_of(options.device), '\n', name_of(options.dtype), '\n',
             name_of(model.precision.decoder.weight), '\n', model.precision.layers.skinny, '\n',
             identity, '\n', model.spec.heads.masked_lm.has_value(),
             model.spec.heads.lm.has_value(), '\n', model.spec_json);
  // The lock is held while loading, so that two sessions opened at once load the weights only once.
  const std::lock_guard lock(mutex);
  std::erase_if(loaded, [](const auto& entry) { return entry.second.expired(); });
  model.weights = loaded[key].lock();
  if (model.weights != nullptr) return;
  model.weights = load();
  loaded[key] = model.weights;
}

}  // namespace packhorse
