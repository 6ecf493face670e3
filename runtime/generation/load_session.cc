// Loads and plans sessions of generation.
#include "core/format.h"
#include "generation/generation_session.h"
#include "generation/runner/model_runner.h"
#include "session/converted_folder.h"

namespace packhorse {
namespace {

void check(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return;
  throw InvalidArgument(concat(name, " is ", value, ", expected ", low, " to ", high));
}

void check_load_options(const GenerationOptions& options) {
  constexpr int64_t kMost = int64_t{1} << 30;
  check("max_tokens", options.max_tokens, 1, kMost);
  if (options.max_sequences < 1 || options.max_sequences > options.max_tokens) {
    throw InvalidArgument(concat("max_sequences is ", options.max_sequences,
                                 ", expected 1 to max_tokens, which is ", options.max_tokens));
  }
  check("max_queue", options.max_queue, 1, kMost);
  check("threads", options.threads, 0, 4096);
  check("max_adapters", options.max_adapters, 0, 1 << 16);
  check("max_adapter_rank", options.max_adapter_rank, 1, 1 << 12);
  if (options.kv_tokens) check("kv_tokens", *options.kv_tokens, 1, int64_t{1} << 40);
  if (options.kv_cache_dtype && *options.kv_cache_dtype != DType::kFloat8) {
    throw InvalidArgument(concat("kv_cache_dtype is ", name_of(*options.kv_cache_dtype),
                                 ", expected float8, or none for the dtype of the activations"));
  }
  check("draft_tokens", options.draft_tokens, options.draft_model ? 1 : 0, kMostDraftTokens);
}

// The draft model of a folder, as its spec and its weights. `weights` keeps those that are opened.
GenerationOptions open_draft(GenerationOptions options, std::unique_ptr<WeightSource>* weights) {
  if (!options.draft_model || options.draft_model->folder.empty()) return options;
  const std::string& folder = options.draft_model->folder;
  options.draft_model->spec_json = read_spec(folder);
  if (weights != nullptr) {
    *weights = open_weights(folder);
    options.draft_model->weights = weights->get();
  }
  return options;
}

}  // namespace

std::shared_ptr<GenerationSession> GenerationSession::load(const std::string& folder,
                                                           const GenerationOptions& options) {
  const std::string spec_json = read_spec(folder);
  return load(spec_json, *open_weights(folder), options);
}

std::shared_ptr<GenerationSession> GenerationSession::load(const std::string& spec_json,
                                                           const WeightSource& weights,
                                                           const GenerationOptions& options) {
  check_load_options(options);
  std::unique_ptr<WeightSource> draft_weights;
  GenerationOptions opened = open_draft(options, &draft_weights);
  if (opened.draft_model && opened.draft_model->weights == nullptr) {
    throw InvalidArgument("draft_model has neither a folder nor weights");
  }
  auto runner = load_model_runner(spec_json, weights, opened);
  if (opened.draft_model) opened.draft_model->weights = nullptr;  // they need not live longer
  return make_generation_session(std::move(runner), opened);
}

GenerationMemoryPlan plan_generation(const std::string& spec_json,
                                     const GenerationOptions& options) {
  check_load_options(options);
  return plan_model_runner(spec_json, open_draft(options, nullptr));
}

}  // namespace packhorse
