// Heads of compressed convolutional attention.
#pragma once

#include <cstddef>

#include "cpu/kernels.h"
#include "cpu/thread_pool.h"
#include "ops/convolve_args.h"

namespace packhorse::cpu {

size_t convolve_heads_workspace(const ConvolveHeadsArgs& args, int threads);
void convolve_heads(const ConvolveHeadsArgs& args, const Kernels& kernels, ThreadPool& pool);

}  // namespace packhorse::cpu
