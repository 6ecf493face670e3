// The rotation of queries and keys (RoPE), and the norms of heads before it.
#pragma once

#include "cpu/isa/kernels.h"
#include "cpu/threads/thread_pool.h"
#include "ops/args/attention.h"

namespace packhorse::cpu {

void rotation(const RotationArgs& args, ThreadPool& pool);
void rope(const RopeArgs& args, const Kernels& kernels, ThreadPool& pool);

}  // namespace packhorse::cpu
