// Arguments of operators as kernels take them: pointers and 32-bit sizes, checked for what CUDA
// needs beyond what Ops has checked (16-bit floats, rows of whole 16-byte accesses).
#pragma once

#include <cstdint>

#include "cuda/attention/attention.h"
#include "cuda/gemm/gemm.h"
#include "cuda/rows/norm.h"
#include "ops/args.h"

namespace packhorse::cuda {

constexpr int64_t kMultiple = 8;  // elements of a 16-byte access

// All throw InvalidArgument naming the operator, the argument, what was found and expected.

void check_compute(const char* op, DType dtype);
void check_vectors(const char* op, const char* name, const TensorView& view);
int32_t to_int32(const char* op, const char* name, int64_t value);

GemmParams gemm_params(const char* op, const TensorView& x, const LinearWeight& weight,
                       Activation activation, const TensorView& residual, const TensorView& out,
                       const int32_t* row_count, int sm_count);
/// Without a workspace.
AttentionParams attention_params(const AttentionArgs& args, int sm_count);
NormParams norm_params(const NormArgs& args);

}  // namespace packhorse::cuda
