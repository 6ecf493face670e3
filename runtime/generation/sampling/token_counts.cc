#include "generation/sampling/token_counts.h"

#include <algorithm>

namespace packhorse {

CountBuffers take_count_buffers(int64_t num_slots, int64_t vocab_size, Arena& arena) {
  CountBuffers buffers;
  buffers.counts = arena.take_matrix("token_counts", num_slots, vocab_size, DType::kInt32);
  buffers.input = arena.take_array<int32_t>("counted_tokens", 2 * kCountedTokens);
  return buffers;
}

TokenCounts::TokenCounts(const CountBuffers& buffers, DeviceContext& device, Ops& ops)
    : buffers_(buffers),
      ops_(ops),
      uploads_(device.make_upload_buffer(buffers.input, 2 * kCountedTokens * sizeof(int32_t))) {
  ids_.reserve(kCountedTokens);
  slots_.reserve(kCountedTokens);
}

void TokenCounts::restart(const StepSampler& sampler) {
  flush();
  auto* const host = static_cast<int32_t*>(uploads_->acquire());
  host[0] = sampler.slot;
  uploads_->send(sizeof(int32_t));
  CountTokensArgs args;
  args.clear = buffers_.input;
  args.num_clear = 1;
  args.counts = buffers_.counts;
  ops_.count_tokens(args);
  for (size_t i = 0; i < sampler.history.size(); ++i) {
    add(sampler.history[i], sampler.slot, static_cast<int64_t>(i) < sampler.prompt_tokens);
  }
}

void TokenCounts::add(int32_t token, int32_t slot, bool of_prompt) {
  if (static_cast<int64_t>(ids_.size()) == kCountedTokens || of_prompt != of_prompt_) flush();
  of_prompt_ = of_prompt;
  ids_.push_back(token);
  slots_.push_back(slot);
}

void TokenCounts::flush() {
  if (ids_.empty()) return;
  auto* const host = static_cast<int32_t*>(uploads_->acquire());
  std::copy(ids_.begin(), ids_.end(), host);
  std::copy(slots_.begin(), slots_.end(), host + kCountedTokens);
  uploads_->send((kCountedTokens + slots_.size()) * sizeof(int32_t));
  CountTokensArgs args;
  args.ids = buffers_.input;
  args.slots = buffers_.input + kCountedTokens;
  args.num_tokens = static_cast<int64_t>(ids_.size());
  args.of_prompt = of_prompt_;
  args.counts = buffers_.counts;
  ids_.clear();
  slots_.clear();
  ops_.count_tokens(args);
}

}  // namespace packhorse
