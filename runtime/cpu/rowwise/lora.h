// Products of LoRA adapters, added to rows.
#pragma once

#include "cpu/isa/kernels.h"
#include "cpu/threads/thread_pool.h"
#include "ops/args/lora.h"

namespace packhorse::cpu {

void add_lora(const LoraArgs& args, const Kernels& kernels, ThreadPool& pool);

}  // namespace packhorse::cpu
