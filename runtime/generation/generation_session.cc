#include "generation/generation_session.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "generation/adapter_names.h"
#include "generation/engine.h"

namespace packhorse {
namespace {

class EngineSession final : public GenerationSession {
 public:
  EngineSession(std::unique_ptr<StepRunner> runner, const GenerationOptions& options)
      : process_(getpid()),
        options_(options),
        adapters_(options.max_adapters),
        runner_(std::move(runner)),
        engine_(std::make_unique<Engine>(*runner_, options_)) {}

  ~EngineSession() override {
    if (getpid() == process_) return;
    // fork() has copied the engine without its thread: it can be neither joined nor destroyed.
    static_cast<void>(engine_.release());
    static_cast<void>(runner_.release());
  }

  std::shared_ptr<GenerationRequest> submit(std::span<const int32_t> ids, const Sampling& sampling,
                                            double timeout_s) override {
    check_process(process_);
    std::unique_ptr<Job> job = make(ids, sampling);
    std::shared_ptr<GenerationRequest> request = job->request;
    engine_->submit({&job, 1}, timeout_s);
    return request;
  }

  std::vector<std::vector<GeneratedSequence>> generate(
      std::span<const std::vector<int32_t>> prompts, const Sampling& sampling) override {
    check_process(process_);
    std::vector<std::unique_ptr<Job>> jobs;
    std::vector<std::shared_ptr<GenerationRequest>> requests;
    for (const auto& ids : prompts) {
      jobs.push_back(make(ids, sampling));
      requests.push_back(jobs.back()->request);
    }
    try {
      engine_->submit(jobs, kNoTimeout);
    } catch (...) {
      for (const auto& request : requests) request->cancel();
      throw;
    }
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
    const int32_t slot = adapters_.reserve(name);
    try {
      const auto load = runner_->read_adapter(weights);
      engine_->between_steps([&] { load(slot); });
    } catch (...) {
      adapters_.drop(slot);
      throw;
    }
    adapters_.publish(slot);
  }
  void remove_adapter(const std::string& name) override {
    check_process(process_);
    adapters_.remove(name);
  }
  std::vector<std::string> adapters() const override {
    check_process(process_);
    return adapters_.names();
  }

  const GenerationMemoryPlan& memory_plan() const override { return runner_->memory_plan(); }
  GenerationStats stats() const override {
    check_process(process_);
    return engine_->stats();
  }
  const GenerationOptions& options() const override { return options_; }
  int64_t max_context() const override {
    const RunnerLimits& limits = runner_->limits();
    return std::min(limits.max_context, limits.num_pages * kPageTokens);
  }
  int64_t vocab_size() const override { return runner_->limits().vocab_size; }

 private:
  std::unique_ptr<Job> make(std::span<const int32_t> ids, const Sampling& sampling) {
    auto job = make_job(ids, sampling, runner_->limits(), options_);
    if (!sampling.adapter.empty()) job->adapter = adapters_.lease(sampling.adapter);
    return job;
  }

  const pid_t process_;
  const GenerationOptions options_;
  AdapterNames adapters_;  // outlives the jobs of the engine
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace

std::shared_ptr<GenerationSession> make_generation_session(std::unique_ptr<StepRunner> runner,
                                                           const GenerationOptions& options) {
  return std::make_shared<EngineSession>(std::move(runner), options);
}

}  // namespace packhorse
