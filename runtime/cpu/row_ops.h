// Ops that treat each row, or each sequence, by itself: embed, copy, rotate, norm, pool, cast.
#pragma once

#include "cpu/kernels.h"
#include "cpu/thread_pool.h"
#include "ops/args.h"

namespace packhorse::cpu {

/// Index into the dtype dimensions of Kernels.
inline int index_of(DType dtype) { return dtype == DType::kBFloat16 ? 1 : 0; }
NormParams params_of(const NormWeight& norm);

void embed(const EmbedArgs& args, const Kernels& kernels, ThreadPool& pool);
void neighbours(const NeighboursArgs& args, ThreadPool& pool);
void rotation(const RotationArgs& args, ThreadPool& pool);
void rotate_heads(const RotateHeadsArgs& args, const Kernels& kernels, ThreadPool& pool);
void norm(const NormArgs& args, const Kernels& kernels, ThreadPool& pool);
void pool_sequences(const PoolArgs& args, const Kernels& kernels, ThreadPool& pool);
void cast(const CastArgs& args, const Kernels& kernels, ThreadPool& pool);

}  // namespace packhorse::cpu
