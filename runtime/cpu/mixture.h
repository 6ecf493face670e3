// Mixtures of experts, and residuals that are scaled.
#pragma once

#include <cstddef>

#include "cpu/gemm.h"
#include "cpu/kernels.h"
#include "cpu/thread_pool.h"
#include "ops/mixture_args.h"

namespace packhorse::cpu {

size_t mixture_workspace(const MixtureArgs& args, int threads);
void mixture(const MixtureArgs& args, GemmSet& gemms, const Kernels& kernels, ThreadPool& pool);
void add_scaled(const AddScaledArgs& args, ThreadPool& pool);

}  // namespace packhorse::cpu
