// Keys and values in pages.
#pragma once

#include "cpu/isa/kernels.h"
#include "cpu/threads/thread_pool.h"
#include "ops/args/kv_cache.h"

namespace packhorse::cpu {

void append_kv_cache(const AppendKvCacheArgs& args, const Kernels& kernels, ThreadPool& pool);

}  // namespace packhorse::cpu
