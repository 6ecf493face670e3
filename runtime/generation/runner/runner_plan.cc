#include "generation/runner/runner_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/format.h"
#include "generation/kv_cache/page_pool.h"
#include "generation/speculation/drafting.h"
#include "model/loading/adapters.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

// Part of a GPU's free memory that model and cache take together where no size is given.
constexpr double kShareOfGpu = 0.9;
// Part of the host's free memory that such a cache takes at most, beside the model: the machine's
// other programs need theirs, and other models of this process a cache of their own.
constexpr double kShareOfHost = 0.25;
// Tokens of each of max_sequences texts that such a cache on the host has room for.
constexpr int64_t kUsualTokens = 2048;

SessionOptions session_options(const GenerationOptions& options) {
  SessionOptions result;
  result.device = options.device;
  result.dtype = options.dtype;
  result.max_tokens = options.max_tokens;
  result.max_sequences = options.max_sequences;
  result.threads = options.threads;
  result.pin_threads = options.pin_threads;
  result.memory_limit = options.memory_limit;
  result.output_slots = 0;
  result.max_predictions = options.max_sequences;
  return result;
}

// Refuses by name what a model with an encoder cannot have.
void check_source(const StackSpec& source, const GenerationOptions& options) {
  if (options.max_adapters > 0 && source.stem.kind == StemKind::kAudio) {
    throw InvalidArgument(
        concat("max_adapters is ", options.max_adapters, ": a model of speech takes no adapters"));
  }
  if (options.draft_model) {
    throw InvalidArgument("a draft model for a model with an encoder, expected none");
  }
  if (source.stem.padding_id >= 0) {
    throw InvalidArgument("the encoder's positions skip padding, which sources do not have");
  }
}

void check_spec(const Spec& spec, const GenerationOptions& options) {
  const StackSpec& stack = spec.stack();
  if (stack.layers.empty()) {
    throw InvalidArgument("spec: there are no layers: a model that generates needs one at least");
  }
  if (!spec.heads.lm) {
    throw InvalidArgument("this model has no 'heads.lm', so it cannot generate text");
  }
  const auto causal = [](const LayerSpec& layer) { return layer.attention().causal; };
  if (!std::ranges::all_of(stack.layers, causal)) {
    throw InvalidArgument(
        "this model's attention is bidirectional: it cannot generate text token by token");
  }
  if (stack.stem.padding_id >= 0) {
    throw InvalidArgument("a model whose positions skip padding cannot generate text");
  }
  if (stack.stem.rows.features > 0) {
    throw InvalidArgument("a model that takes rows beside token ids cannot generate text");
  }
  if (stack.convolution.width > 0) {
    throw InvalidArgument("a model with a convolution cannot generate text");
  }
  if (spec.source() != nullptr) check_source(*spec.source(), options);
  const bool plain = !stack.has<CcaSpec>() && !stack.has<MoeSpec>();
  if (!plain && options.max_adapters > 0) {
    throw InvalidArgument(concat("max_adapters is ", options.max_adapters,
                                 ": a model with compressed attention or a mixture of experts "
                                 "takes no adapters"));
  }
}

bool on_host(const DeviceContext& device) { return device.device().type == DeviceType::kCpu; }

// Bytes of model and cache together where nothing is asked for. `taken`: bytes of the model.
size_t default_limit(const DeviceContext& device, size_t taken) {
  const size_t free = device.free_bytes();
  const auto share = [](size_t bytes, double part) {
    return static_cast<size_t>(static_cast<double>(bytes) * part);
  };
  if (!on_host(device)) return share(free, kShareOfGpu);
  return free <= taken ? free : taken + share(free - taken, kShareOfHost);
}

// Pages beyond which a cache of no given size does not grow. At least one text of the longest
// context has room.
int64_t most_pages(const LoadedModel& model, const GenerationOptions& options) {
  const int64_t source = pages_of(longest_source(model.spec, options));
  const int64_t longest = longest_table(model.spec) + source;
  if (options.memory_limit || !on_host(*model.backend.device)) {
    return options.max_sequences * longest;
  }
  return std::max(longest, options.max_sequences * std::min(longest, pages_of(kUsualTokens)));
}

// Pages of the cache: those asked for, or what the memory leaves.
int64_t count_pages(const PlannedRunner& planned, const PlannedRunner* draft,
                    const GenerationOptions& options) {
  const LoadedModel& model = planned.model;
  size_t page_bytes = planned.page_bytes();
  size_t taken = planned.plan.total_bytes();
  if (draft != nullptr) {
    page_bytes += draft->page_bytes();
    taken += draft->plan.total_bytes();
  }
  if (options.kv_tokens) {
    const int64_t pages = pages_of(*options.kv_tokens);
    size_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<size_t>(pages), page_bytes, &bytes) ||
        bytes > PTRDIFF_MAX) {
      throw OutOfMemory(concat("a cache of ", *options.kv_tokens, " tokens exceeds the address ",
                               "space: a page of ", kPageTokens, " tokens takes ", page_bytes,
                               " bytes; lower kv_tokens"));
    }
    if (options.memory_limit && taken + bytes > *options.memory_limit) {
      throw OutOfMemory(concat("a cache of ", *options.kv_tokens, " tokens takes ", bytes,
                               " bytes, memory_limit is ", *options.memory_limit,
                               " bytes, of which weights, adapters and arena take ", taken,
                               ": lower kv_tokens, max_tokens or max_sequences, or raise "
                               "memory_limit"));
    }
    return pages;
  }
  const size_t limit =
      options.memory_limit ? *options.memory_limit : default_limit(*model.backend.device, taken);
  const int64_t most = most_pages(model, options);
  const int64_t pages =
      limit <= taken ? 0 : std::min(most, static_cast<int64_t>((limit - taken) / page_bytes));
  if (pages < 1) {
    throw OutOfMemory(concat("no page of the cache fits: ", limit,
                             " bytes may be used, weights, adapters and arena take ", taken,
                             ", a page of ", kPageTokens, " tokens takes ", page_bytes));
  }
  return pages;
}

// True of a model whose encoder reads audio.
bool hears(const Spec& spec) {
  return spec.source() != nullptr && spec.source()->stem.kind == StemKind::kAudio;
}

// The formats of the dense layers of a model that generates. Those of windows of audio are large
// products, for which CUDA has kernels of its own in 8 bits; what follows token by token has 16.
void choose_formats(LoadedModel& model) {
  Precision& precision = model.precision;
  const bool on_cuda = model.backend.device->device().type == DeviceType::kCuda;
  const DType weight = precision.layers.weight;
  if (on_cuda && hears(model.spec)) {
    precision.source = precision.layers;
    precision.layers = precision.rest;
  } else if (weight == DType::kFloat8 || (on_cuda && weight == DType::kInt8)) {
    throw RuntimeError(concat("dtype ", name_of(weight),
                              weight == DType::kInt8 ? " on a CUDA device" : "",
                              " is for models that encode, and for speech; load this model, which "
                              "generates, as float16 or bfloat16"));
  }
  precision.layers.skinny = true;
  precision.decoder = precision.layers;
}

// The dtype of keys and values in the cache. Those of a window of audio, which are many, are read
// for every token at the rate of the memory, so that a CPU keeps them in 16 bits where weights have
// fewer.
DType cache_dtype(const LoadedModel& model, const GenerationOptions& options, DType activations) {
  const bool halved = hears(model.spec) && options.dtype == DType::kInt8 &&
                      model.backend.device->device().type == DeviceType::kCpu;
  return options.kv_cache_dtype.value_or(halved ? DType::kBFloat16 : activations);
}

// All but the cache. `taken_back`: as for kv_cache_shape.
PlannedRunner plan_model(const std::string& spec_json, const GenerationOptions& options,
                         int64_t taken_back) {
  PlannedRunner planned{
      .model = open_model(spec_json, session_options(options)), .shape = {}, .plan = {}};
  LoadedModel& model = planned.model;
  check_spec(model.spec, options);
  choose_formats(model);
  count_memory(model, [&](const ModelWeights& weights, Arena& arena) {
    const DType dtype = weights.stem.dtype;
    planned.shape = kv_cache_shape(model.spec.stack(), weights.stack, dtype,
                                   cache_dtype(model, options, dtype), taken_back);
    take_runner_buffers(model.spec, weights, options, model.backend, arena);
  });
  static_cast<MemoryPlan&>(planned.plan) = model.plan;
  if (options.max_adapters > 0) {
    Arena slots;
    take_adapter_slots(model.spec, model.precision, model.backend, adapter_capacity(options), slots,
                       nullptr);
    planned.plan.adapters = slots.plan();
  }
  return planned;
}

void plan_cache(PlannedRunner& planned, int64_t num_pages) {
  Arena arena;
  const KvCache cache(planned.shape, num_pages, arena);
  planned.num_pages = num_pages;
  planned.plan.kv_cache = arena.plan();
  planned.plan.kv_tokens = num_pages * kPageTokens;
  planned.plan.bytes_per_token = planned.shape.bytes_per_token();
}

PlannedRunner plan_draft(const PlannedRunner& target, const GenerationOptions& options) {
  PlannedRunner planned;
  try {
    planned =
        plan_model(options.draft_model->spec_json, draft_options(options), options.draft_tokens);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat("the draft model: ", error.message()));
  }
  const int64_t found = planned.model.spec.stack().stem.vocab_size;
  const int64_t expected = target.model.spec.stack().stem.vocab_size;
  if (found != expected) {
    throw InvalidArgument(concat("the draft model has a vocabulary of ", found,
                                 " tokens, expected that of the model it drafts for: ", expected));
  }
  return planned;
}

}  // namespace

AdapterCapacity adapter_capacity(const GenerationOptions& options) {
  return {options.max_adapters, options.max_adapter_rank};
}

int64_t longest_table(const Spec& spec) { return pages_of(spec.max_seqlen); }

int64_t longest_source(const Spec& spec, const GenerationOptions& options) {
  const StackSpec* const source = spec.source();
  return source == nullptr ? 0 : std::min(source->max_seqlen, options.max_tokens);
}

int64_t source_features(const Spec& spec) {
  return hears(spec) ? kAudioStride * spec.source()->stem.audio.features : 0;
}

namespace {

// Heads of cross attention in each layer, of which specs have equally many.
int64_t cross_heads(const Spec& spec) {
  if (spec.source() == nullptr) return 0;
  int64_t heads = std::numeric_limits<int64_t>::max();
  for (const LayerSpec& layer : spec.stack().layers) {
    heads = std::min(heads, attention_of(layer.blocks[1])->num_heads);
  }
  return heads;
}

}  // namespace

RunnerLimits limits_of(const Spec& spec, const GenerationOptions& options) {
  return {.vocab_size = spec.stack().stem.vocab_size,
          .max_context = spec.max_seqlen,
          .num_pages = 0,
          .max_tokens = options.max_tokens,
          .max_sequences = options.max_sequences,
          .max_adapters = options.max_adapters,
          .max_drafts = most_drafts(options),
          .max_chunk = 0,
          .max_source = longest_source(spec, options),
          .source_vocab_size = spec.source() == nullptr ? 0 : spec.source()->stem.vocab_size,
          .cross_layers = spec.source() == nullptr ? 0 : std::ssize(spec.stack().layers),
          .cross_heads = cross_heads(spec),
          .source_features = source_features(spec)};
}

SamplerShape sampler_shape(const Spec& spec, const GenerationOptions& options) {
  return {.rows = options.max_sequences + most_drafts(options),
          .num_slots = options.max_sequences,
          .vocab_size = spec.stack().stem.vocab_size};
}

namespace {

SourceBuffers take_source_buffers(const Spec& spec, const ModelWeights& weights,
                                  const Capacity& capacity, const Backend& backend, Arena& arena) {
  const Capacity own = {.max_tokens = capacity.max_tokens,
                        .max_sequences = capacity.max_sequences,
                        .adapters = capacity.adapters};
  const DType dtype = weights.stem.dtype;
  const StackWeights& stack = weights.source->stack;
  SourceBuffers buffers;
  buffers.layers = take_layer_buffers(*spec.source(), stack, own, dtype, *backend.ops, arena);
  {
    const Arena::Scope stem(arena);
    buffers.stem = take_stem_buffers(weights.source->stem, own, *backend.ops, arena);
  }
  {
    const Arena::Scope blocks(arena);
    take_block_buffers(*spec.source(), stack, own, *backend.ops, arena, buffers.layers);
  }
  buffers.keys = take_source_keys(weights.stack, own, dtype, *backend.ops, arena);
  buffers.keys.adapted_ranks = buffers.layers.adapted_ranks;
  return buffers;
}

}  // namespace

RunnerBuffers take_runner_buffers(const Spec& spec, const ModelWeights& weights,
                                  const GenerationOptions& options, const Backend& backend,
                                  Arena& arena) {
  const Capacity capacity = {.max_tokens = options.max_tokens,
                             .max_sequences = options.max_sequences,
                             .max_kv_len = spec.max_seqlen,
                             .max_source = longest_source(spec, options),
                             .adapters = adapter_capacity(options)};
  const DType dtype = weights.stem.dtype;
  const SamplerShape sampler = sampler_shape(spec, options);
  RunnerBuffers buffers;
  const LastingBuffers lasting = take_lasting_buffers(sampler, arena);
  const StepLayout layout(limits_of(spec, options), longest_table(spec));
  buffers.step = take_step_buffers(layout, limits_of(spec, options), arena);
  if (weights.source) {
    buffers.alignment =
        arena.take_matrix("alignment", kAlignedRows, capacity.max_source, DType::kFloat32);
    const Arena::Scope source(arena);
    buffers.source = take_source_buffers(spec, weights, capacity, backend, arena);
  }
  buffers.layers =
      take_layer_buffers(spec.stack(), weights.stack, capacity, dtype, *backend.ops, arena);
  {
    const Arena::Scope stem(arena);
    buffers.stem = take_stem_buffers(weights.stem, capacity, *backend.ops, arena);
  }
  {
    const Arena::Scope blocks(arena);
    take_block_buffers(spec.stack(), weights.stack, capacity, *backend.ops, arena, buffers.layers);
  }
  buffers.sampler =
      take_sampler_buffers(sampler, lasting, *weights.heads.lm, dtype, *backend.ops, arena);
  return buffers;
}

GenerationOptions draft_options(const GenerationOptions& options) {
  GenerationOptions result = options;
  result.dtype = options.draft_model->dtype;
  result.max_adapters = 0;
  result.draft_tokens = 0;
  result.draft_model.reset();
  return result;
}

PlannedRunners plan_runners(const std::string& spec_json, const GenerationOptions& options) {
  PlannedRunners planned{.model = plan_model(spec_json, options, options.draft_tokens),
                         .draft = {}};
  if (options.draft_model) planned.draft = plan_draft(planned.model, options);
  PlannedRunner* const draft = planned.draft ? &*planned.draft : nullptr;
  const int64_t num_pages = count_pages(planned.model, draft, options);
  plan_cache(planned.model, num_pages);
  if (draft != nullptr) {
    plan_cache(*draft, num_pages);
    planned.model.plan.draft_weights = draft->plan.weights;
    planned.model.plan.draft_arena = draft->plan.arena;
    planned.model.plan.draft_kv_cache = draft->plan.kv_cache;
  }
  return planned;
}

}  // namespace packhorse
