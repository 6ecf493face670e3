// Memory that a model that generates needs: its buffers, and the number of pages of its cache.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/arena.h"
#include "generation/kv_cache/kv_cache.h"
#include "generation/runner/step_inputs.h"
#include "generation/runner/step_runner.h"
#include "generation/sampling/sampler.h"
#include "model/batch.h"
#include "model/layers/stack.h"
#include "model/stem/tokens.h"
#include "packhorse/generation.h"
#include "session/loaded_model.h"

namespace packhorse {

/// The buffers in which sources are read. They share memory with those of the layers that follow.
struct SourceBuffers {
  StemBuffers stem;
  LayerBuffers layers;
  SourceKeyBuffers keys;
};

/// Rows of weights over the source that are computed at once.
inline constexpr int64_t kAlignedRows = 64;

/// The buffers of the steps, all in one arena.
struct RunnerBuffers {
  StepBuffers step;
  SourceBuffers source;
  StemBuffers stem;
  LayerBuffers layers;
  SamplerBuffers sampler;
  TensorView alignment;  // [kAlignedRows, longest source] float32, or empty without an encoder
};

/// A model that generates, and what it takes of memory.
struct PlannedRunner {
  LoadedModel model;  // without weights
  KvCacheShape shape;
  GenerationMemoryPlan plan;
  int64_t num_pages = 0;

  size_t page_bytes() const { return shape.page_bytes(); }
};

struct PlannedRunners {
  PlannedRunner model;
  std::optional<PlannedRunner> draft;
};

/// The plan of the model and, where options ask for one, of its draft model. No weights are read.
/// Throws as load_model_runner does.
PlannedRunners plan_runners(const std::string& spec_json, const GenerationOptions& options);

/// Takes the buffers from the arena, both when it counts and when it carves.
RunnerBuffers take_runner_buffers(const Spec& spec, const ModelWeights& weights,
                                  const GenerationOptions& options, const Backend& backend,
                                  Arena& arena);

/// The draft model runs the steps of the other, without adapters and without drafts of its own.
GenerationOptions draft_options(const GenerationOptions& options);

AdapterCapacity adapter_capacity(const GenerationOptions& options);
/// Limits that spec and options set. `num_pages` and `max_chunk` are left 0: the runner's memory
/// plan and device decide them.
RunnerLimits limits_of(const Spec& spec, const GenerationOptions& options);
SamplerShape sampler_shape(const Spec& spec, const GenerationOptions& options);
/// Pages that a sequence of the longest context has.
int64_t longest_table(const Spec& spec);
/// RunnerLimits::source_features.
int64_t source_features(const Spec& spec);
/// Tokens of the longest source that a step can read; 0: the model has no encoder.
int64_t longest_source(const Spec& spec, const GenerationOptions& options);

}  // namespace packhorse
