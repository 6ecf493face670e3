// Adds the outputs of adapters (LoRA) to rows.
#pragma once

#include "cpu/kernels.h"
#include "cpu/thread_pool.h"
#include "ops/args/lora.h"

namespace packhorse::cpu {

void add_lora(const LoraArgs& args, const Kernels& kernels, ThreadPool& pool);
void activate(const ActivateArgs& args, const Kernels& kernels, ThreadPool& pool);
/// out = activation(gate) * up for all rows of x, in which blocks of both alternate.
void gate(const TensorView& x, Activation activation, const TensorView& out, const Kernels& kernels,
          ThreadPool& pool);

}  // namespace packhorse::cpu
