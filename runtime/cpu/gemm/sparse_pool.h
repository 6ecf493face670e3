// The operator sparse_pool. A task computes one panel of columns for all rows, 64 rows of logits at
// a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/gemm/gemm.h"
#include "cpu/isa/kernels.h"
#include "cpu/threads/thread_pool.h"
#include "ops/args/dense.h"

namespace packhorse::cpu {

size_t sparse_pool_workspace(int64_t in_features, DType dtype, int threads);
void sparse_pool(const SparsePoolArgs& args, GemmSet& gemms, const Kernels& kernels,
                 ThreadPool& pool);

}  // namespace packhorse::cpu
