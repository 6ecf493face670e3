// Dense layers in float32, which our own kernel computes (gemm_kernel_float.inc). Their weights are
// float32, bfloat16 or float16, which changes the memory that they take and no bit of a result.
#pragma once

#include <memory>

#include "cpu/gemm/gemm_shape.h"
#include "cpu/threads/thread_pool.h"

namespace packhorse::cpu {

size_t packed_float_bytes(int64_t in_features, int64_t out_features, DType dtype);
/// Rounds weights to `dtype`.
void pack_float_weight(const float* weight, int64_t in_features, int64_t out_features, DType dtype,
                       void* packed, ThreadPool& pool);
/// Packs columns [first, first + count), of which `rows` has only these, float32 [count,
/// in_features]. `first` is a multiple of kPackedColumns.
void pack_float_rows(const float* rows, int64_t first, int64_t count, int64_t in_features,
                     DType dtype, void* packed);
std::unique_ptr<Gemm> make_float_gemm(const DenseShape& shape);

}  // namespace packhorse::cpu
