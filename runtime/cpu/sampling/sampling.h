// Choosing tokens on the CPU.
#pragma once

#include "cpu/isa/kernels.h"
#include "cpu/threads/thread_pool.h"
#include "ops/args/sampling.h"

namespace packhorse::cpu {

size_t sample_workspace(int64_t vocab_size, int64_t num_biases, int threads);
void sample(const SampleArgs& args, const Kernels& kernels, ThreadPool& pool);
void count_tokens(const CountTokensArgs& args);
void begin_step(const BeginStepArgs& args);

}  // namespace packhorse::cpu
