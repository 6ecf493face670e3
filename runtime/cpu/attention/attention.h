// Attention over sequences of different lengths: the thread pool runs one task for each sequence,
// head and tile of queries. Over the pages of a cache: one for each sequence, head of keys and tile
// of rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/isa/kernels.h"
#include "cpu/threads/thread_pool.h"
#include "ops/args/attention.h"

namespace packhorse::cpu {

size_t attention_workspace(const AttentionArgs& args, int threads);
size_t paged_attention_workspace(const AttentionArgs& args, int threads);
void attention(const AttentionArgs& args, const Kernels& kernels, ThreadPool& pool);
void attention_weights(const AttentionWeightsArgs& args, ThreadPool& pool);
void paged_attention(const AttentionArgs& args, const Kernels& kernels, ThreadPool& pool);

}  // namespace packhorse::cpu
