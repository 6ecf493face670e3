// How often each running sequence has had each token: what penalties are computed from.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/arena.h"
#include "generation/step_runner.h"
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

class TokenCounts {
 public:
  TokenCounts(const CountBuffers& buffers, DeviceContext& device, Ops& ops);

  /// Brings the slot up to the sampler's history.
  void update(const StepSampler& sampler);
  /// Sends what `update` has gathered to the device.
  void flush();

 private:
  void add(int32_t token, int32_t slot, bool of_prompt);

  const CountBuffers& buffers_;
  Ops& ops_;
  const std::unique_ptr<UploadBuffer> uploads_;
  bool of_prompt_ = false;  // of what is gathered
  std::vector<int32_t> ids_;
  std::vector<int32_t> slots_;
};

}  // namespace packhorse
