// Attention over the pages of a cache: tasks of (sequence, head of keys, tile of rows) over the
// pool.
#pragma once

#include <cstddef>

#include "cpu/isa/kernels.h"
#include "cpu/threads/thread_pool.h"
#include "ops/args/attention.h"

namespace packhorse::cpu {

size_t paged_attention_workspace(const AttentionArgs& args, int threads);
void paged_attention(const AttentionArgs& args, const Kernels& kernels, ThreadPool& pool);

}  // namespace packhorse::cpu
