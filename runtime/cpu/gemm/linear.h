// The operators linear and feed_forward: chains of one or two dense layers, then residual and norm,
// computed by blocks of rows. If weights are int8, rows are quantised before they are multiplied.
//
// As many blocks as fill all threads evenly are processed whole: one task carries a block of 64
// rows through the chain, and intermediate values stay in its core's cache. The few remaining
// blocks (all blocks of a small batch) are split: a task is one panel of columns, or a few rows
// where each row is processed by itself. The arithmetic is the same either way.
#pragma once

#include <cstddef>

#include "cpu/gemm/gemm.h"
#include "cpu/isa/kernels.h"
#include "cpu/threads/thread_pool.h"
#include "ops/args/dense.h"

namespace packhorse::cpu {

size_t linear_workspace(const LinearArgs& args, int threads);
size_t feed_forward_workspace(const FeedForwardArgs& args, int threads);

void linear(const LinearArgs& args, GemmSet& gemms, const Kernels& kernels, ThreadPool& pool);
void feed_forward(const FeedForwardArgs& args, GemmSet& gemms, const Kernels& kernels,
                  ThreadPool& pool);

}  // namespace packhorse::cpu
