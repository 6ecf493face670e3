// linear and feed_forward: chains of one or two dense layers, then residual and norm, by row
// blocks. Weights are floats or bytes; rows are quantised as they come to those of bytes.
//
// As many blocks as fill all threads evenly run whole: one task carries a block of 64 rows through
// the chain, and what lies between stays in its core's cache. The few blocks that remain (all of a
// small batch) are split: a task is one panel of columns, or one slice of rows for what is done row
// by row. Either way the same arithmetic is done.
#pragma once

#include <cstddef>

#include "cpu/gemm.h"
#include "cpu/kernels.h"
#include "cpu/thread_pool.h"
#include "ops/args.h"

namespace packhorse::cpu {

size_t linear_workspace(const LinearArgs& args, int threads);
size_t feed_forward_workspace(const FeedForwardArgs& args, int threads);

void linear(const LinearArgs& args, GemmSet& gemms, const Kernels& kernels, ThreadPool& pool);
void feed_forward(const FeedForwardArgs& args, GemmSet& gemms, const Kernels& kernels,
                  ThreadPool& pool);

}  // namespace packhorse::cpu
