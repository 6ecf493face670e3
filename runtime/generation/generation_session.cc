#include "generation/generation_session.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/format.h"
#include "generation/engine/adapter_names.h"
#include "generation/engine/engine.h"
#include "model/spec/spec.h"

namespace packhorse {
namespace {

class EngineSession final : public GenerationSession {
 public:
  EngineSession(std::unique_ptr<StepRunner> runner, const GenerationOptions& options)
      : process_(getpid()),
        options_(options),
        parts_(std::make_unique<Parts>(std::move(runner), options_)) {}

  ~EngineSession() override {
    Parts* const parts = parts_.release();
    // fork() has copied the engine without its thread: it can be neither joined nor destroyed.
    if (getpid() != process_) return;
    Engine::destroy({parts, [](void* held) { delete static_cast<Parts*>(held); }}, parts->engine);
  }

  std::shared_ptr<GenerationRequest> submit(std::span<const int32_t> ids, const Sampling& sampling,
                                            double timeout_s,
                                            std::span<const int32_t> source) override {
    check_process(process_);
    std::unique_ptr<Job> job = make(ids, sampling, source);
    std::shared_ptr<GenerationRequest> request = job->request;
    parts_->engine.submit({&job, 1}, timeout_s);
    return request;
  }

  std::shared_ptr<GenerationRequest> submit_features(
      std::span<const int32_t> ids, const Sampling& sampling, double timeout_s,
      std::shared_ptr<const SourceFeatures> features) override {
    check_process(process_);
    if (features == nullptr) throw InvalidArgument("there are no features, expected frames");
    std::unique_ptr<Job> job = make(ids, sampling, {}, std::move(features));
    std::shared_ptr<GenerationRequest> request = job->request;
    parts_->engine.submit({&job, 1}, timeout_s);
    return request;
  }

  std::vector<std::shared_ptr<GenerationRequest>> submit_all(
      std::span<const std::vector<int32_t>> prompts, const Sampling& sampling, double timeout_s,
      std::span<const std::vector<int32_t>> sources) override {
    check_process(process_);
    if (!sources.empty() && sources.size() != prompts.size()) {
      throw InvalidArgument(concat("there are ", sources.size(),
                                   " sources, expected one for each of ", prompts.size(),
                                   " prompts"));
    }
    std::vector<std::unique_ptr<Job>> jobs;
    std::vector<std::shared_ptr<GenerationRequest>> requests;
    for (size_t i = 0; i < prompts.size(); ++i) {
      jobs.push_back(
          make(prompts[i], sampling, sources.empty() ? std::span<const int32_t>() : sources[i]));
      requests.push_back(jobs.back()->request);
    }
    try {
      parts_->engine.submit(jobs, timeout_s);
    } catch (...) {
      for (const auto& request : requests) request->cancel();
      throw;
    }
    return requests;
  }

  std::vector<std::vector<GeneratedSequence>> generate(
      std::span<const std::vector<int32_t>> prompts, const Sampling& sampling,
      std::span<const std::vector<int32_t>> sources) override {
    const auto requests = submit_all(prompts, sampling, kNoTimeout, sources);
    std::vector<std::vector<GeneratedSequence>> results;
    for (const auto& request : requests) {
      request->wait();
      auto& sequences = results.emplace_back();
      for (size_t i = 0; i < request->num_sequences(); ++i) sequences.push_back(request->result(i));
    }
    return results;
  }

  void add_adapter(const std::string& name, const WeightSource& weights) override {
    check_process(process_);
    const int32_t slot = parts_->adapters.reserve(name);
    try {
      const auto load = parts_->runner->read_adapter(weights);
      parts_->engine.between_steps([&] { load(slot); });
    } catch (...) {
      parts_->adapters.drop(slot);
      throw;
    }
    parts_->adapters.publish(slot);
  }
  void remove_adapter(const std::string& name) override {
    check_process(process_);
    parts_->adapters.remove(name);
  }
  std::vector<std::string> adapters() const override {
    check_process(process_);
    return parts_->adapters.names();
  }

  const GenerationMemoryPlan& memory_plan() const override { return parts_->runner->memory_plan(); }
  GenerationStats stats() const override {
    check_process(process_);
    return parts_->engine.stats();
  }
  const GenerationOptions& options() const override { return options_; }
  int64_t max_context() const override {
    const RunnerLimits& limits = parts_->runner->limits();
    return std::min(limits.max_context, limits.num_pages * kPageTokens);
  }
  int64_t vocab_size() const override { return parts_->runner->limits().vocab_size; }
  int64_t max_source() const override {
    const RunnerLimits& limits = parts_->runner->limits();
    return std::min(limits.max_source, (limits.num_pages - 1) * kPageTokens);
  }
  int64_t frame_features() const override {
    return parts_->runner->limits().source_features / kAudioStride;
  }

 private:
  /// State that the engine's thread uses, and the engine.
  struct Parts {
    Parts(std::unique_ptr<StepRunner> runs, const GenerationOptions& options)
        : adapters(options.max_adapters), runner(std::move(runs)), engine(*runner, options) {}

    AdapterNames adapters;  // outlives the jobs of the engine
    const std::unique_ptr<StepRunner> runner;
    Engine engine;
  };

  std::unique_ptr<Job> make(std::span<const int32_t> ids, const Sampling& sampling,
                            std::span<const int32_t> source,
                            std::shared_ptr<const SourceFeatures> features = nullptr) {
    auto job =
        make_job(ids, sampling, parts_->runner->limits(), options_, source, std::move(features));
    if (!sampling.adapter.empty()) job->adapter = parts_->adapters.lease(sampling.adapter);
    return job;
  }

  const pid_t process_;
  const GenerationOptions options_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace

std::shared_ptr<GenerationSession> make_generation_session(std::unique_ptr<StepRunner> runner,
                                                           const GenerationOptions& options) {
  return std::make_shared<EngineSession>(std::move(runner), options);
}

}  // namespace packhorse
