// linear and feed_forward with int8 weights: rows are quantised as they come, sums become floats
// panel by panel while they are in cache, with bias and activation. Which blocks run whole and
// which are split over the threads: see linear.h. Integer sums are exact, so nothing of that has a
// part in the result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/gemm.h"
#include "cpu/kernels.h"
#include "cpu/thread_pool.h"
#include "ops/args.h"

namespace packhorse::cpu {

/// `floats`: dtype of the activations.
size_t linear_int8_workspace(int64_t rows, int64_t in_features, int64_t out_features, DType floats,
                             int threads);
size_t feed_forward_int8_workspace(int64_t rows, int64_t hidden_size, int64_t intermediate_size,
                                   bool gated, DType floats, int threads);

void linear_int8(const LinearArgs& args, GemmSet& gemms, const Kernels& kernels, ThreadPool& pool);
void feed_forward_int8(const FeedForwardArgs& args, GemmSet& gemms, const Kernels& kernels,
                       ThreadPool& pool);

}  // namespace packhorse::cpu
