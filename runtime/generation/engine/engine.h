// The thread that turns requests into tokens, step by step.
//
// Where the runner's steps overlap, the thread plans and launches a step while the one before it
// runs, and only then waits for that and collects its tokens. So the device goes from step to step
// without the host. The price is that what ends a sequence (a stop id, a cancellation, a deadline)
// is seen when the next step has been launched: what that computes for the sequence is thrown away,
// and no caller sees it. scheduler.h says which sequences take part, and sequence_pages.h why pages
// may change hands meanwhile.
//
// The thread calls code of others: token masks and listeners. They may drop the session, which
// nobody can wait for in this thread; the engine then ends after them, by itself.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "generation/engine/job.h"
#include "generation/runner/step_runner.h"
#include "generation/scheduler/scheduler.h"
#include "generation/speculation/drafting.h"

namespace packhorse {

class Engine {
 public:
  /// An object of any class, with the function that destroys it.
  using Owner = std::unique_ptr<void, void (*)(void*)>;

  /// Starts the thread. `runner` outlives the object.
  Engine(StepRunner& runner, const GenerationOptions& options);
  /// Ends what is there with FinishReason::kCancelled, after the step that is being run.
  ~Engine();
  /// Destroys `owner`, which holds an engine and all that it uses. In the thread of this or of
  /// another engine that happens later, in the thread of `engine`: engines that wait for each other
  /// would wait forever.
  static void destroy(Owner owner, Engine& engine);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Adds jobs to the queue, and waits up to `timeout_s` where it has no place for all. Steps see
  /// those that there is place for together. Throws RuntimeError where no place came; the jobs
  /// before are in the queue then.
  void submit(std::span<std::unique_ptr<Job>> jobs, double timeout_s);
  GenerationStats stats() const;
  /// Has the engine's thread call `work` when no step runs, and waits for it. Throws what `work`
  /// throws, and RuntimeError where the engine ends first.
  void between_steps(std::function<void()> work);

 private:
  /// Ends the thread soon. The thread destroys `owner` at its end.
  void stop(Owner owner);
  /// Throws RuntimeError in the engine's own thread, which would wait for itself.
  void check_caller(const char* what) const;
  void run();
  /// Takes what was submitted; sleeps while there is no work. False: the engine is to end.
  bool take_submitted();
  /// Tells callers how many wait and run.
  void count();
  void end_overdue();
  /// Launches what can be launched.
  void launch_steps();
  /// False: there was nothing to launch, or it failed.
  bool launch_step();
  /// Waits for the oldest step in flight, if there is one, and takes its results.
  void collect_step();
  void collect(const PlannedStep& plan);
  void fail(const PlannedStep& plan, const std::string& error);
  void take_token(Sequence& sequence);
  /// Takes the tokens of a step with drafts, as far as these are accepted.
  void take_drafted(Sequence& sequence, int64_t drafts);
  void advance_beams(Job& job);
  void end_beams(Job& job, FinishReason reason);
  void end(Job& job, FinishReason reason, const std::string& error = {});
  void finish(Sequence& sequence, FinishReason reason);
  void finish_beams(Job& job, std::vector<Hypothesis> hypotheses, FinishReason otherwise);
  /// Calls `body`, whose exceptions (of a mask) end the job.
  template <class Body>
  void guard(Job& job, const Body& body);
  void notify_callers();
  /// Calls `wait`, whose time is not the thread's own.
  template <class Wait>
  void rest(const Wait& wait);

  StepRunner& runner_;
  const RunnerLimits limits_;
  const size_t most_in_flight_;
  const int64_t max_queue_;
  Scheduler scheduler_;  // used by the thread alone, like all jobs in it and the next two
  // Jobs are looked through for those to end when the process has counted another cancellation
  // since, or when this time has come.
  uint64_t cancellations_ = 0;
  std::chrono::steady_clock::time_point next_deadline_;
  double host_s_ = 0;  // GenerationStats::host_s, up to the last rest
  std::chrono::steady_clock::time_point awake_ = std::chrono::steady_clock::now();
  std::optional<ModelDrafter> drafter_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable submitted_;
  std::condition_variable room_;
  std::vector<std::unique_ptr<Job>> inbox_;
  std::vector<std::packaged_task<void()>> tasks_;  // queued by between_steps
  int64_t num_unstarted_ = 0;                      // jobs of the scheduler that wait
  GenerationStats stats_;
  bool stopping_ = false;
  Owner owner_{nullptr, nullptr};  // what the thread is to destroy

  std::thread thread_;  // last: it uses the others
};

}  // namespace packhorse
