// Operators that process each row, or each sequence, by itself: embed, copy, rotate, norm, pool,
// cast.
#pragma once

#include "cpu/isa/kernels.h"
#include "cpu/threads/thread_pool.h"
#include "ops/args.h"
#include "ops/args/rowwise.h"

namespace packhorse::cpu {

void embed(const EmbedArgs& args, const Kernels& kernels, ThreadPool& pool);
void unfold(const UnfoldArgs& args, ThreadPool& pool);
void rotation(const RotationArgs& args, ThreadPool& pool);
void rope(const RopeArgs& args, const Kernels& kernels, ThreadPool& pool);
void append_kv_cache(const AppendKvCacheArgs& args, const Kernels& kernels, ThreadPool& pool);
void norm(const NormArgs& args, const Kernels& kernels, ThreadPool& pool);
void pool_sequences(const PoolArgs& args, const Kernels& kernels, ThreadPool& pool);
void cast(const CastArgs& args, const Kernels& kernels, ThreadPool& pool);
void gather_rows(const GatherRowsArgs& args, ThreadPool& pool);
void clear_empty(const ClearEmptyArgs& args);

}  // namespace packhorse::cpu
