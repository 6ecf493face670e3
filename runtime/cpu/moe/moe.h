// Mixtures of experts, and residuals that are scaled.
#pragma once

#include <cstddef>

#include "cpu/gemm/gemm.h"
#include "cpu/isa/kernels.h"
#include "cpu/threads/thread_pool.h"
#include "ops/args/moe.h"

namespace packhorse::cpu {

size_t moe_workspace(const MoeArgs& args, int threads);
void moe(const MoeArgs& args, GemmSet& gemms, const Kernels& kernels, ThreadPool& pool);
void add_scaled(const AddScaledArgs& args, ThreadPool& pool);

}  // namespace packhorse::cpu
