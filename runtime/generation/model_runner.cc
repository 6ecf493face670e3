#include "generation/model_runner.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "core/format.h"
#include "generation/drafting.h"
#include "generation/kv_cache.h"
#include "generation/step_inputs.h"
#include "generation/token_chooser.h"
#include "model/adapters.h"
#include "model/stack.h"
#include "model/stem.h"
#include "session/loaded_model.h"

namespace packhorse {
namespace {

// Part of the memory that is free which a cache of no given size takes.
constexpr double kShareOfFree = 0.9;

// How long tokens of prompts may compute beside sequences that go on, in reads of all weights. A
// step of n tokens takes about as long as 1 + n / balanced_rows reads, of which 1 is the time of a
// step without prompts: with 4, prompts run at 80 % of their speed alone, and the other sequences
// wait for the time of five steps.
constexpr int64_t kChunkReads = 4;

struct RunnerBuffers {
  StepBuffers step;
  StemBuffers stem;
  LayerBuffers layers;
  ChooserBuffers chooser;
};

AdapterCapacity adapter_capacity(const GenerationOptions& options) {
  return {options.max_adapters, options.max_adapter_rank};
}

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

int64_t pages_for(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

// Pages that a sequence of the longest context has.
int64_t longest_table(const Spec& spec) { return pages_for(spec.max_seqlen); }

RunnerLimits limits_of(const Spec& spec, const GenerationOptions& options) {
  return {.vocab_size = spec.stem.vocab_size,
          .max_context = spec.max_seqlen,
          .num_pages = 0,
          .max_tokens = options.max_tokens,
          .max_sequences = options.max_sequences,
          .max_adapters = options.max_adapters,
          .max_drafts = most_drafts(options)};
}

ChooserShape chooser_shape(const Spec& spec, const GenerationOptions& options) {
  return {.rows = options.max_sequences + most_drafts(options),
          .num_slots = options.max_sequences,
          .vocab_size = spec.stem.vocab_size};
}

void check_spec(const Spec& spec, const GenerationOptions& options) {
  if (!spec.heads.lm) {
    throw InvalidArgument("this model has no 'heads.lm', so it cannot generate text");
  }
  if (!spec.stack.attention.causal) {
    throw InvalidArgument(
        "this model's attention is bidirectional: it cannot generate text token by token");
  }
  if (spec.stack.convolution.width > 0) {
    throw InvalidArgument("a model with a convolution cannot generate text");
  }
  const bool plain = !spec.stack.attention.compression && !spec.stack.feed_forward.mixture;
  if (!plain && options.max_adapters > 0) {
    throw InvalidArgument(concat("max_adapters is ", options.max_adapters,
                                 ": a model with compressed attention or a mixture of experts "
                                 "takes no adapters"));
  }
}

RunnerBuffers take_buffers(const Spec& spec, const ModelWeights& weights,
                           const GenerationOptions& options, const Backend& backend, Arena& arena) {
  const Capacity capacity = {.max_tokens = options.max_tokens,
                             .max_sequences = options.max_sequences,
                             .max_kv_len = spec.max_seqlen,
                             .adapters = adapter_capacity(options)};
  const DType dtype = weights.stem.word_table.dtype;
  const ChooserShape chooser = chooser_shape(spec, options);
  RunnerBuffers buffers;
  const LastingBuffers lasting = take_lasting_buffers(chooser, arena);
  const StepLayout layout(limits_of(spec, options), longest_table(spec));
  buffers.step = take_step_buffers(layout, limits_of(spec, options), arena);
  buffers.layers = take_layer_buffers(spec, weights.stack, capacity, dtype, *backend.ops, arena);
  {
    const Arena::Scope stem(arena);
    buffers.stem = take_stem_buffers(weights.stem, capacity, *backend.ops, arena);
  }
  {
    const Arena::Scope blocks(arena);
    take_block_buffers(spec, weights.stack, capacity, *backend.ops, arena, buffers.layers);
  }
  buffers.chooser =
      take_chooser_buffers(chooser, lasting, *weights.heads.lm, dtype, *backend.ops, arena);
  return buffers;
}

struct Planned {
  LoadedModel model;  // without weights
  KvCacheShape shape;
  GenerationMemoryPlan plan;
  int64_t num_pages = 0;

  size_t page_bytes() const { return shape.page_bytes(); }
};

// Pages of the cache: those asked for, or what the memory leaves.
int64_t count_pages(const Planned& planned, const Planned* draft,
                    const GenerationOptions& options) {
  const LoadedModel& model = planned.model;
  size_t page_bytes = planned.page_bytes();
  size_t taken = planned.plan.total_bytes();
  if (draft != nullptr) {
    page_bytes += draft->page_bytes();
    taken += draft->plan.total_bytes();
  }
  if (options.kv_tokens) {
    const int64_t pages = pages_for(*options.kv_tokens);
    const size_t bytes = static_cast<size_t>(pages) * page_bytes;
    if (options.memory_limit && taken + bytes > *options.memory_limit) {
      throw OutOfMemory(concat("a cache of ", *options.kv_tokens, " tokens takes ", bytes,
                               " bytes, memory_limit is ", *options.memory_limit,
                               " bytes, of which weights, adapters and arena take ", taken,
                               ": lower kv_tokens, max_tokens or max_sequences, or raise "
                               "memory_limit"));
    }
    return pages;
  }
  const auto share = [](size_t free, double part) {
    return static_cast<size_t>(static_cast<double>(free) * part);
  };
  const size_t limit = options.memory_limit
                           ? *options.memory_limit
                           : share(model.backend.device->free_bytes(), kShareOfFree);
  const int64_t most = options.max_sequences * longest_table(model.spec);
  const int64_t pages =
      limit <= taken ? 0 : std::min(most, static_cast<int64_t>((limit - taken) / page_bytes));
  if (pages < 1) {
    throw OutOfMemory(concat("no page of the cache fits: ", limit,
                             " bytes may be used, weights, adapters and arena take ", taken,
                             ", a page of ", kPageTokens, " tokens takes ", page_bytes));
  }
  return pages;
}

// All but the cache. `taken_back`: as for kv_cache_shape.
Planned plan_model(const std::string& spec_json, const GenerationOptions& options,
                   int64_t taken_back) {
  Planned planned{
      .model = open_model(spec_json, session_options(options)), .shape = {}, .plan = {}};
  LoadedModel& model = planned.model;
  check_spec(model.spec, options);
  model.precision.decoder = model.precision.layers;
  count_memory(model, [&](const ModelWeights& weights, Arena& arena) {
    planned.shape =
        kv_cache_shape(model.spec.stack, weights.stack, weights.stem.word_table.dtype, taken_back);
    take_buffers(model.spec, weights, options, model.backend, arena);
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

void plan_cache(Planned& planned, int64_t num_pages) {
  Arena arena;
  const KvCache cache(planned.shape, num_pages, arena);
  planned.num_pages = num_pages;
  planned.plan.kv_cache = arena.plan();
  planned.plan.kv_tokens = num_pages * kPageTokens;
  planned.plan.bytes_per_token = planned.shape.bytes_per_token();
}

// The draft model runs the steps of the other, without adapters and without drafts of its own.
GenerationOptions draft_options(const GenerationOptions& options) {
  GenerationOptions result = options;
  result.dtype = options.draft_model->dtype;
  result.max_adapters = 0;
  result.draft_tokens = 0;
  result.draft_model.reset();
  return result;
}

Planned plan_draft(const Planned& target, const GenerationOptions& options) {
  Planned planned;
  try {
    planned =
        plan_model(options.draft_model->spec_json, draft_options(options), options.draft_tokens);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat("the draft model: ", error.message()));
  }
  const int64_t found = planned.model.spec.stem.vocab_size;
  const int64_t expected = target.model.spec.stem.vocab_size;
  if (found != expected) {
    throw InvalidArgument(concat("the draft model has a vocabulary of ", found,
                                 " tokens, expected that of the model it drafts for: ", expected));
  }
  return planned;
}

struct PlannedModels {
  Planned model;
  std::optional<Planned> draft;
};

PlannedModels plan(const std::string& spec_json, const GenerationOptions& options) {
  PlannedModels planned{.model = plan_model(spec_json, options, options.draft_tokens), .draft = {}};
  if (options.draft_model) planned.draft = plan_draft(planned.model, options);
  Planned* const draft = planned.draft ? &*planned.draft : nullptr;
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

class ModelRunner final : public StepRunner {
 public:
  /// `draft`: runs the draft model, or null.
  ModelRunner(Planned planned, const GenerationOptions& options,
              std::unique_ptr<StepRunner> draft = nullptr)
      : model_(std::move(planned.model)),
        plan_(std::move(planned.plan)),
        draft_(std::move(draft)),
        limits_(limits_of(model_.spec, options)),
        arena_memory_(device().allocate(plan_.arena.bytes)),
        adapter_memory_(options.max_adapters > 0 ? device().allocate(plan_.adapters.bytes)
                                                 : nullptr),
        cache_memory_(device().allocate(plan_.kv_cache.bytes)),
        buffers_(carve_buffers(options)),
        cache_(carve_cache(planned.shape, planned.num_pages)),
        inputs_(limits_, StepLayout(limits_, longest_table(model_.spec)), buffers_.step, device()),
        adapter_capacity_(adapter_capacity(options)),
        adapters_(carve_adapters()),
        loaded_(static_cast<size_t>(options.max_adapters)),
        chooser_(chooser_shape(model_.spec, options), *model_.spec.heads.lm,
                 *model_.weights->heads.lm, buffers_.chooser, inputs_, model_.backend) {
    limits_.num_pages = planned.num_pages;
    limits_.max_chunk = kChunkReads * device().balanced_rows();
    warm_up(-1);
    if (options.max_adapters > 0) {  // of an empty slot, but with all operators of adapters
      loaded_[0] = {.uses = {true, true, true, true}};
      warm_up(0);
      loaded_[0] = {};
    }
    recordings_ = record(nullptr);
  }

  // The device may still be at work on what a failed step has asked for.
  ~ModelRunner() override {
    try {
      device().synchronize();
    } catch (...) {
      // The device is lost.
    }
  }

  const RunnerLimits& limits() const override { return limits_; }
  const GenerationMemoryPlan& memory_plan() const override { return plan_; }
  StepRunner* draft() override { return draft_.get(); }

  bool overlaps() const override { return device().asynchronous(); }

  void launch(const Step& step) override {
    cache_.copy(step.copies, device());
    chooser_.begin(step);
    const TokenBatch tokens = inputs_.write(step, chooser_.row_of_slot());
    chooser_.write_rows();
    inputs_.send();
    const AdapterBatch adapters = adapters_of(step);
    const bool adapted = std::ranges::any_of(adapters.uses, std::identity());
    const StepRecordings* recorded =
        find(tokens.batch, adapted ? adapted_recordings_ : recordings_);
    if (recorded != nullptr && chooser_.is_plain()) {
      recorded->whole[chooser_.wants_logprobs() ? 1 : 0]->launch();
    } else {
      if (recorded != nullptr) {
        recorded->encoder->launch();
      } else {
        encode(tokens, adapted ? &adapters : nullptr);
      }
      chooser_.choose_all(buffers_.layers.hidden.first_rows(tokens.batch.num_tokens));
    }
    chooser_.launched();
  }

  void wait() override { chooser_.wait(); }

  std::function<void(int32_t)> read_adapter(const WeightSource& source) override {
    if (adapter_capacity_.max_adapters == 0) return StepRunner::read_adapter(source);
    auto adapter = std::make_shared<const Adapter>(packhorse::read_adapter(
        model_.spec, model_.precision, model_.backend, adapter_capacity_, source));
    return [this, adapter](int32_t slot) { load(*adapter, slot); };
  }

 private:
  /// What the adapter in a slot adds to.
  struct LoadedAdapter {
    PerTarget<bool> uses = {};
    bool up_in_all_layers = false;
  };
  /// Of steps of single tokens, of so many sequences at most.
  struct StepRecordings {
    int64_t sequences = 0;
    std::unique_ptr<Recording> encoder;  // without the choice of tokens
    /// The whole step, where TokenChooser::is_plain; the second with log-probabilities.
    std::array<std::unique_ptr<Recording>, 2> whole;
  };
  using Recordings = std::vector<StepRecordings>;  // by `sequences`, ascending

  DeviceContext& device() const { return *model_.backend.device; }

  RunnerBuffers carve_buffers(const GenerationOptions& options) {
    Arena arena(arena_memory_->data(), plan_.arena);
    return take_buffers(model_.spec, *model_.weights, options, model_.backend, arena);
  }

  KvCache carve_cache(const KvCacheShape& shape, int64_t num_pages) {
    Arena arena(cache_memory_->data(), plan_.kv_cache);
    return KvCache(shape, num_pages, arena);
  }

  AdapterSlots carve_adapters() {
    if (adapter_capacity_.max_adapters == 0) return {};
    Arena arena(adapter_memory_->data(), plan_.adapters);
    return take_adapter_slots(model_.spec, model_.precision, model_.backend, adapter_capacity_,
                              arena, &device());
  }

  void load(const Adapter& adapter, int32_t slot) {
    LoadedAdapter& loaded = loaded_[static_cast<size_t>(slot)];
    loaded = {};
    load_adapter(adapter, adapters_, slot, device());
    for (size_t t = 0; t < loaded.uses.size(); ++t) {
      loaded.uses[t] = adapter.any(static_cast<LoraTarget>(t));
    }
    loaded.up_in_all_layers = adapter.all(LoraTarget::kUp);
    AdapterBatch all = no_adapters();
    for (const LoadedAdapter& one : loaded_) add(one, all);
    all.up_of_all = false;  // a step may have any of them, and sequences without one
    adapted_recordings_ = record(&all);
  }

  AdapterBatch no_adapters() const {
    return {.slots = &adapters_, .rows = inputs_.adapters(), .uses = {}, .up_of_all = true};
  }

  static void add(const LoadedAdapter& loaded, AdapterBatch& batch) {
    std::ranges::transform(batch.uses, loaded.uses, batch.uses.begin(), std::logical_or<>());
    batch.up_of_all = batch.up_of_all && loaded.up_in_all_layers;
  }

  AdapterBatch adapters_of(const Step& step) const {
    AdapterBatch batch = no_adapters();
    for (const StepSequence& sequence : step.sequences) {
      const int32_t slot = sequence.adapter;
      add(slot < 0 ? LoadedAdapter() : loaded_[static_cast<size_t>(slot)], batch);
    }
    return batch;
  }

  // One token, so that what kernels make at first use is made now, and not in a caller's step. What
  // it leaves in a page is never read.
  void warm_up(int32_t adapter) {
    const int32_t id = 0;
    const int32_t page = 0;
    const Sampling sampling;
    TokenLogprob chosen;
    StepSequence sequence;
    sequence.ids = {&id, 1};
    sequence.pages = {&page, 1};
    sequence.adapter = adapter;
    sequence.sample = true;
    sequence.sampler.sampling = &sampling;
    sequence.chosen = &chosen;
    run({.copies = {}, .sequences = {&sequence, 1}, .num_tokens = 1});
  }

  // Steps of single tokens, in which launches would take longer than what they launch, are recorded
  // for batches up to each power of two.
  Recordings record(const AdapterBatch* adapters) {
    Recordings recordings;
    if (device().recording_bounds(limits_.max_sequences, 1).empty()) return recordings;
    for (int64_t bound = 1;; bound *= 2) {
      const int64_t sequences = std::min(bound, limits_.max_sequences);
      const TokenBatch tokens = inputs_.bounds(sequences, sequences, 1);
      const auto run = [&] { encode(tokens, adapters); };
      const auto run_whole = [&](bool wants_logprobs) {
        return device().record([&] {
          run();
          chooser_.choose(sequences, tokens.batch.counts + 1, wants_logprobs,
                          buffers_.layers.hidden);
        });
      };
      recordings.push_back({sequences, device().record(run), {run_whole(false), run_whole(true)}});
      if (sequences == limits_.max_sequences) return recordings;
    }
  }

  // What is recorded for such a batch, or null.
  static const StepRecordings* find(const BatchView& batch, const Recordings& recordings) {
    if (batch.max_seqlen != 1) return nullptr;
    for (const StepRecordings& recorded : recordings) {
      if (batch.num_sequences <= recorded.sequences) return &recorded;
    }
    return nullptr;
  }

  void encode(const TokenBatch& tokens, const AdapterBatch* adapters) {
    Ops& ops = *model_.backend.ops;
    ops.begin_step(inputs_.begin(tokens.batch, chooser_.tokens(), chooser_.counts()));
    embed(model_.spec.stem, model_.weights->stem, buffers_.stem, tokens, buffers_.layers.hidden,
          ops);
    std::vector<KvPages>& layers = layers_;
    layers.clear();
    for (const KvPages& layer : cache_.layers()) {
      layers.push_back(inputs_.pages(layer, tokens.batch));
    }
    latents_.clear();
    for (const LatentPages& layer : cache_.latents()) latents_.push_back(inputs_.latents(layer));
    PagedKeys keys(layers, latents_);
    Stack(model_.spec.stack, model_.weights->stack, buffers_.layers, ops, adapters)
        .run(tokens, keys);
  }

  LoadedModel model_;
  const GenerationMemoryPlan plan_;
  const std::unique_ptr<StepRunner> draft_;
  RunnerLimits limits_;
  const std::unique_ptr<DeviceMemory> arena_memory_;
  const std::unique_ptr<DeviceMemory> adapter_memory_;
  const std::unique_ptr<DeviceMemory> cache_memory_;
  const RunnerBuffers buffers_;
  const KvCache cache_;
  StepInputs inputs_;
  const AdapterCapacity adapter_capacity_;
  const AdapterSlots adapters_;
  std::vector<LoadedAdapter> loaded_;  // by slot
  TokenChooser chooser_;
  std::vector<KvPages> layers_;  // of the step that runs, like the next one
  std::vector<LatentPages> latents_;
  Recordings recordings_;          // of steps without adapters
  Recordings adapted_recordings_;  // of steps with any of those that are loaded
};

}  // namespace

std::unique_ptr<StepRunner> load_model_runner(const std::string& spec_json,
                                              const WeightSource& source,
                                              const GenerationOptions& options) {
  PlannedModels planned = plan(spec_json, options);
  std::unique_ptr<StepRunner> draft;
  if (planned.draft) {
    load_weights(planned.draft->model, *options.draft_model->weights);
    draft = std::make_unique<ModelRunner>(std::move(*planned.draft), draft_options(options));
  }
  load_weights(planned.model.model, source);
  return std::make_unique<ModelRunner>(std::move(planned.model), options, std::move(draft));
}

GenerationMemoryPlan plan_model_runner(const std::string& spec_json,
                                       const GenerationOptions& options) {
  return plan(spec_json, options).model.plan;
}

}  // namespace packhorse
