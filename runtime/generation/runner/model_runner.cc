#include "generation/runner/model_runner.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "core/format.h"
#include "generation/kv_cache/kv_cache.h"
#include "generation/runner/alignment.h"
#include "generation/runner/runner_plan.h"
#include "generation/runner/step_inputs.h"
#include "generation/sampling/sampler.h"
#include "model/loading/adapters.h"
#include "model/transformer.h"
#include "session/loaded_model.h"

namespace packhorse {
namespace {

// Time that tokens of prompts may take beside sequences that go on, in reads of all weights. A step
// of n tokens takes about as long as 1 + n / balanced_rows reads, of which 1 is the time of a step
// without prompts: with 4, prompts run at 80 % of their speed alone, and the other sequences wait
// for the time of five steps.
constexpr int64_t kChunkReads = 4;

// Rows of a step with drafts up to which a product reads its weight as if there were one.
constexpr int64_t kDecodeRows = 8;

class ModelRunner final : public StepRunner {
 public:
  /// `most_drafts`: of a sequence in a step, of this model or of the one that it drafts for.
  /// `draft`: runs the draft model, or null.
  ModelRunner(PlannedRunner planned, const GenerationOptions& options, int64_t most_drafts,
              std::unique_ptr<StepRunner> draft = nullptr)
      : model_(std::move(planned.model)),
        plan_(std::move(planned.plan)),
        draft_(std::move(draft)),
        limits_(limits_of(model_.spec, options)),
        most_drafts_(most_drafts),
        arena_memory_(allocate(plan_.arena, "the arena: lower max_tokens or max_sequences")),
        adapter_memory_(options.max_adapters > 0
                            ? allocate(plan_.adapters, "adapters: lower max_adapters")
                            : nullptr),
        cache_memory_(allocate(plan_.kv_cache,
                               concat("a cache of ", plan_.kv_tokens, " tokens: lower kv_tokens"))),
        buffers_(carve_buffers(options)),
        cache_(carve_first_page(planned.shape)),
        layout_(limits_, longest_table(model_.spec)),
        ring_(device().make_ring(buffers_.step.inputs, layout_.size,
                                 buffers_.sampler.lasting.results,
                                 most_result_bytes(sampler_shape(model_.spec, options)))),
        inputs_(limits_, layout_, buffers_.step, *ring_, device()),
        adapter_capacity_(adapter_capacity(options)),
        adapters_(carve_adapters()),
        loaded_(static_cast<size_t>(options.max_adapters)),
        sampler_(sampler_shape(model_.spec, options), *model_.spec.heads.lm,
                 *model_.weights->heads.lm, buffers_.sampler, inputs_, *ring_, model_.backend) {
    limits_.num_pages = planned.num_pages;
    limits_.max_chunk = kChunkReads * device().balanced_rows();
    warm_up(-1);
    if (options.max_adapters > 0) {  // warms up an empty slot, with all operators of adapters
      loaded_[0].stack.any.fill(true);
      loaded_[0].source.any.fill(true);
      warm_up(0);
      loaded_[0] = {};
    }
    cache_ = carve_cache(planned.shape, planned.num_pages);
    graphs_ = record(nullptr);
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
    sampler_.begin(step);
    const TokenBatch tokens = inputs_.write(step, sampler_.row_of_slot());
    sampler_.write_rows();
    const AdapterBatch adapters = adapters_of(step);
    const bool adapted = std::ranges::any_of(adapters.uses.any, std::identity());
    const bool aligned = wants_alignment(step);
    const StepGraphs* recorded =
        aligned ? nullptr : find(tokens.batch, adapted ? adapted_graphs_ : graphs_);
    ring_->send(inputs_.bytes());
    if (!step.sources.empty()) read_sources(step);
    if (recorded != nullptr && sampler_.is_plain()) {
      recorded->whole[sampler_.wants_logprobs() ? 1 : 0]->launch();
      ring_->fetch(sampler_.plain_result_bytes(sampler_.wants_logprobs()));
    } else {
      if (recorded != nullptr) {
        recorded->encoder->launch();
      } else {
        encode(tokens, adapted ? &adapters : nullptr, aligned ? &step : nullptr);
      }
      sampler_.choose_all(buffers_.layers.hidden.first_rows(tokens.batch.num_tokens));
      ring_->fetch(sampler_.result_bytes());
    }
    sampler_.launched();
  }

  void wait() override { sampler_.wait(); }

  std::function<void(int32_t)> read_adapter(const WeightSource& source) override {
    if (adapter_capacity_.max_adapters == 0) return StepRunner::read_adapter(source);
    auto adapter = std::make_shared<const Adapter>(packhorse::read_adapter(
        model_.spec, model_.precision, model_.backend, adapter_capacity_, source));
    return [this, adapter](int32_t slot) { load(*adapter, slot); };
  }

 private:
  /// Layers that the adapter in a slot adds to.
  struct LoadedAdapter {
    AdapterUses stack;
    AdapterUses source;
  };
  /// Recorded graphs, for steps within these bounds.
  struct StepGraphs {
    int64_t sequences = 0;
    int64_t tokens = 0;
    int64_t max_seqlen = 0;
    std::unique_ptr<DeviceGraph> encoder;  // without the choice of tokens
    /// Graphs of the whole step where Sampler::is_plain; the second with log-probabilities.
    std::array<std::unique_ptr<DeviceGraph>, 2> whole;

    bool hold(const BatchView& batch) const {
      return batch.num_sequences <= sequences && batch.num_tokens <= tokens &&
             batch.max_seqlen <= max_seqlen;
    }
  };
  using GraphCache = std::vector<StepGraphs>;  // the first that holds a batch is for it

  DeviceContext& device() const { return *model_.backend.device; }

  // `what`: what it is for, and what makes it smaller.
  std::unique_ptr<DeviceMemory> allocate(const PlannedAllocation& plan, const std::string& what) {
    try {
      return device().allocate(plan.bytes);
    } catch (const OutOfMemory& error) {
      throw OutOfMemory(concat(error.message(), ", for ", what));
    }
  }

  RunnerBuffers carve_buffers(const GenerationOptions& options) {
    Arena arena(arena_memory_->data(), plan_.arena);
    return take_runner_buffers(model_.spec, *model_.weights, options, model_.backend, arena);
  }

  KvCache carve_cache(const KvCacheShape& shape, int64_t num_pages) {
    Arena arena(cache_memory_->data(), plan_.kv_cache);
    return KvCache(shape, num_pages, arena);
  }

  // A cache of one page, which warming up writes. With all pages, keys and values of each layer
  // would lie in another huge page, all of which the system would clear while a model is loaded.
  KvCache carve_first_page(const KvCacheShape& shape) {
    Arena counting(plan_.kv_cache.bytes);
    [[maybe_unused]] const KvCache counted(shape, 1, counting);
    Arena arena(cache_memory_->data(), counting.plan());
    return KvCache(shape, 1, arena);
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
    loaded = {.stack = uses_of(adapter.stack), .source = uses_of(adapter.source)};
    AdapterBatch all = no_adapters(adapters_.stack, inputs_.adapters());
    for (const LoadedAdapter& one : loaded_) add(one.stack, all.uses);
    all.uses.up_of_all = false;  // a step may have any of them, and sequences without one
    adapted_graphs_ = record(&all);
  }

  static AdapterBatch no_adapters(const StackSlots& slots, const int32_t* rows) {
    return {.slots = &slots, .rows = rows, .uses = {.any = {}, .up_of_all = true}};
  }

  static void add(const AdapterUses& one, AdapterUses& uses) {
    std::ranges::transform(uses.any, one.any, uses.any.begin(), std::logical_or<>());
    uses.up_of_all = uses.up_of_all && one.up_of_all;
  }

  LoadedAdapter loaded(int32_t slot) const {
    return slot < 0 ? LoadedAdapter() : loaded_[static_cast<size_t>(slot)];
  }

  AdapterBatch adapters_of(const Step& step) const {
    AdapterBatch batch = no_adapters(adapters_.stack, inputs_.adapters());
    for (const SequenceSlice& sequence : step.sequences) {
      add(loaded(sequence.adapter).stack, batch.uses);
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
    SequenceSlice sequence;
    sequence.ids = {&id, 1};
    sequence.pages = {&page, 1};
    sequence.adapter = adapter;
    sequence.sample = true;
    sequence.sampler.sampling = &sampling;
    sequence.chosen = &chosen;
    const std::vector<float> silence(static_cast<size_t>(limits_.source_features));
    const SourceSlice source = {
        .ids = {&id, 1}, .pages = {&page, 1}, .features = silence, .adapter = adapter};
    const size_t num_sources = limits_.max_source > 0 ? 1 : 0;
    const AttentionHead head;
    float weight = 0;
    if (num_sources > 0) {
      sequence.source_pages = source.pages;
      sequence.source_tokens = 1;
      sequence.alignment = {
          .heads = {&head, 1}, .rows = 1, .source_tokens = 1, .out = &weight, .row_stride = 1};
    }
    run({.copies = {},
         .sequences = {&sequence, 1},
         .num_tokens = 1,
         .sources = {&source, num_sources}});
  }

  // Small steps, in which launches would take longer than what they launch, are recorded: those of
  // single tokens for batches up to each power of two, and those with drafts.
  GraphCache record(const AdapterBatch* adapters) {
    GraphCache graphs;
    if (device().graph_bounds(limits_.max_sequences, 1).empty()) return graphs;
    const auto encoder = [&](int64_t tokens, int64_t sequences, int64_t max_seqlen) {
      return [this, adapters, batch = inputs_.bounds(tokens, sequences, max_seqlen)] {
        encode(batch, adapters);
      };
    };
    for (int64_t bound = 1;; bound *= 2) {
      const int64_t sequences = std::min(bound, limits_.max_sequences);
      const auto run = encoder(sequences, sequences, 1);
      const auto run_whole = [&](bool wants_logprobs) {
        return device().record([&] {
          run();
          sampler_.choose(sequences, inputs_.bounds(sequences, sequences, 1).batch.counts + 1,
                          wants_logprobs, buffers_.layers.hidden);
        });
      };
      graphs.push_back(
          {sequences, sequences, 1, device().record(run), {run_whole(false), run_whole(true)}});
      if (sequences == limits_.max_sequences) break;
    }
    if (most_drafts_ == 0) return graphs;
    for (const int64_t rows : {kDecodeRows, kMostDraftedRows}) {
      const int64_t tokens = std::min(rows, limits_.max_tokens);
      const int64_t sequences = std::min(tokens, limits_.max_sequences);
      const int64_t max_seqlen = std::min(tokens, 1 + most_drafts_);
      graphs.push_back({sequences,
                        tokens,
                        max_seqlen,
                        device().record(encoder(tokens, sequences, max_seqlen)),
                        {}});
    }
    return graphs;
  }

  // Returns what is recorded for such a batch, or null.
  static const StepGraphs* find(const BatchView& batch, const GraphCache& graphs) {
    const auto found = std::ranges::find_if(
        graphs, [&](const StepGraphs& recorded) { return recorded.hold(batch); });
    return found == graphs.end() ? nullptr : &*found;
  }

  // `aligned`: the step, where weights of cross attention are wanted of it.
  void encode(const TokenBatch& tokens, const AdapterBatch* adapters,
              const Step* aligned = nullptr) {
    Ops& ops = *model_.backend.ops;
    ops.begin_step(inputs_.begin(tokens.batch, sampler_.tokens(), sampler_.counts()));
    std::vector<PagedKvCache>& layers = layers_;
    layers.clear();
    for (const PagedKvCache& layer : cache_.layers()) {
      layers.push_back(inputs_.pages(layer, tokens.batch));
    }
    latents_.clear();
    for (const LatentPages& layer : cache_.latents()) latents_.push_back(inputs_.latents(layer));
    PagedKeys keys(layers, latents_);
    attended_.clear();
    if (model_.weights->source) {
      for (const PagedKvCache& layer : cache_.layers()) {
        attended_.push_back(inputs_.attended_pages(layer, tokens.batch));
      }
    }
    PagedKeys source(attended_, inputs_.attending(tokens.batch));
    std::optional<AlignedKeys> aligned_source;
    if (aligned != nullptr) {
      aligned_source.emplace(attended_, *aligned, buffers_.alignment, device(), ops);
    }
    KeySource& attended = aligned_source ? static_cast<KeySource&>(*aligned_source) : source;
    Transformer(model_.spec, *model_.weights, buffers_.stem, buffers_.layers, ops, adapters)
        .run(tokens, keys, nullptr, &attended);
  }

  // Runs the encoder, and writes what cross attention reads of its result to the cache.
  void read_sources(const Step& step) {
    AdapterBatch encoding = no_adapters(adapters_.source, inputs_.source_adapters());
    AdapterBatch writing = no_adapters(adapters_.stack, inputs_.source_adapters());
    for (const SourceSlice& source : step.sources) {
      add(loaded(source.adapter).source, encoding.uses);
      add(loaded(source.adapter).stack, writing.uses);
    }
    Ops& ops = *model_.backend.ops;
    const ModelWeights& weights = *model_.weights;
    const SourceBuffers& buffers = buffers_.source;
    const TokenBatch sources = inputs_.sources();
    OwnKeys own;
    Transformer(*model_.spec.source(), weights.source->stem, weights.source->stack, buffers.stem,
                buffers.layers, ops, &encoding)
        .run(sources, own);
    layers_.clear();
    for (const PagedKvCache& layer : cache_.layers()) {
      layers_.push_back(inputs_.source_pages(layer));
    }
    write_source(model_.spec.stack(), weights.stack, buffers.keys,
                 buffers.layers.hidden.first_rows(sources.batch.num_tokens), sources.batch, layers_,
                 &writing, ops);
  }

  LoadedModel model_;
  const GenerationMemoryPlan plan_;
  const std::unique_ptr<StepRunner> draft_;
  RunnerLimits limits_;
  const int64_t most_drafts_;
  const std::unique_ptr<DeviceMemory> arena_memory_;
  const std::unique_ptr<DeviceMemory> adapter_memory_;
  const std::unique_ptr<DeviceMemory> cache_memory_;
  const RunnerBuffers buffers_;
  KvCache cache_;
  const StepLayout layout_;
  const std::unique_ptr<HostDeviceRing> ring_;
  StepInputs inputs_;
  const AdapterCapacity adapter_capacity_;
  const AdapterSlots adapters_;
  std::vector<LoadedAdapter> loaded_;  // by slot
  Sampler sampler_;
  std::vector<PagedKvCache> layers_;  // belongs to the step that runs, like the next one
  std::vector<LatentPages> latents_;
  std::vector<PagedKvCache> attended_;  // sources that cross attention reads
  GraphCache graphs_;                   // steps without adapters
  GraphCache adapted_graphs_;           // steps with any adapters that are loaded
};

}  // namespace

std::unique_ptr<StepRunner> load_model_runner(const std::string& spec_json,
                                              const WeightSource& source,
                                              const GenerationOptions& options) {
  PlannedRunners planned = plan_runners(spec_json, options);
  std::unique_ptr<StepRunner> draft;
  if (planned.draft) {
    load_weights(planned.draft->model, *options.draft_model->weights);
    draft = std::make_unique<ModelRunner>(std::move(*planned.draft), draft_options(options),
                                          options.draft_tokens);
  }
  load_weights(planned.model.model, source);
  return std::make_unique<ModelRunner>(std::move(planned.model), options, options.draft_tokens,
                                       std::move(draft));
}

GenerationMemoryPlan plan_model_runner(const std::string& spec_json,
                                       const GenerationOptions& options) {
  return plan_runners(spec_json, options).model.plan;
}

}  // namespace packhorse
