// Counts of the tokens that each running sequence has had: what penalties are computed from.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/arena.h"
#include "generation/runner/step_runner.h"
#include "ops/device_context.h"
#include "ops/ops.h"

namespace packhorse {

/// Tokens of a history that go to the device at once.
inline constexpr int64_t kCountedTokens = 4096;

struct CountBuffers {
  TensorView counts;         // [num_slots, vocab_size] int32, as CountTokensArgs says
  int32_t* input = nullptr;  // ids [kCountedTokens], slots [kCountedTokens]
};

/// `counts` has to keep its values from step to step.
CountBuffers take_count_buffers(int64_t num_slots, int64_t vocab_size, Arena& arena);

/// True if tokens are counted for a request: its settings have a penalty.
inline bool has_penalties(const Sampling& sampling) {
  return sampling.repetition_penalty != 1 || sampling.presence_penalty != 0 ||
         sampling.frequency_penalty != 0;
}

/// Counts histories from their beginning. The one token that a sequence has more in each step after
/// that is counted by the operator begin_step.
class TokenCounts {
 public:
  TokenCounts(const CountBuffers& buffers, DeviceContext& device, Ops& ops);

  /// The slot forgets what it has, and gets the sampler's history.
  void restart(const StepSampler& sampler);
  /// Sends what `update` has gathered to the device.
  void flush();

 private:
  void add(int32_t token, int32_t slot, bool of_prompt);

  const CountBuffers& buffers_;
  Ops& ops_;
  const std::unique_ptr<UploadBuffer> uploads_;
  bool of_prompt_ = false;  // whether what is gathered are tokens of a prompt
  std::vector<int32_t> ids_;
  std::vector<int32_t> slots_;
};

}  // namespace packhorse
