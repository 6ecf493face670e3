// The operators that treat each row, or each sequence, by itself.
#pragma once

#include "cpu/isa/kernels.h"
#include "cpu/threads/thread_pool.h"
#include "ops/args/attention.h"
#include "ops/args/kv_cache.h"
#include "ops/args/lora.h"
#include "ops/args/rowwise.h"

namespace packhorse::cpu {

void embed(const EmbedArgs& args, const Kernels& kernels, ThreadPool& pool);
void unfold(const UnfoldArgs& args, ThreadPool& pool);
void norm(const NormArgs& args, const Kernels& kernels, ThreadPool& pool);
void pool_sequences(const PoolArgs& args, const Kernels& kernels, ThreadPool& pool);
void activate(const ActivateArgs& args, const Kernels& kernels, ThreadPool& pool);
void log_softmax(const LogSoftmaxArgs& args, const Kernels& kernels, ThreadPool& pool);
void cast(const CastArgs& args, const Kernels& kernels, ThreadPool& pool);
void rotation(const RotationArgs& args, ThreadPool& pool);
void rope(const RopeArgs& args, const Kernels& kernels, ThreadPool& pool);
void append_kv_cache(const AppendKvCacheArgs& args, const Kernels& kernels, ThreadPool& pool);
void add_lora(const LoraArgs& args, const Kernels& kernels, ThreadPool& pool);

}  // namespace packhorse::cpu
