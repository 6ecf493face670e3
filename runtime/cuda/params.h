// The arguments of operators in the form that kernels take: pointers and 32-bit sizes. The
// functions check what CUDA needs beyond what Ops has checked: 16-bit floats, and rows that consist
// of whole 16-byte vectors. They all throw InvalidArgument that names the operator, the argument,
// what was found and what was expected.
#pragma once

#include <cstdint>

#include "cuda/attention/attention.h"
#include "cuda/attention/paged/paged.h"
#include "cuda/gemm/gemm.h"
#include "cuda/rowwise/norm.h"
#include "ops/args.h"

namespace packhorse::cuda {

constexpr int64_t kMultiple = 8;         // elements of 16 bits in a 16-byte access
constexpr int64_t kFloat8Multiple = 16;  // elements of kFloat8 in a 16-byte access

/// Checks that `dtype` is one that CUDA computes in.
void check_compute(const char* op, DType dtype);
/// Checks that the rows of `view` can be read 16 bytes at a time.
void check_vectors(const char* op, const char* name, const TensorView& view);
/// Checks that `value` fits 32 bits.
int32_t to_int32(const char* op, const char* name, int64_t value);

GemmParams gemm_params(const char* op, const TensorView& x, const LinearWeight& weight,
                       Activation activation, const TensorView& residual, const TensorView& out,
                       const int32_t* row_count, int sm_count);
/// Parameters of a layer in e4m3: x and the weight are kFloat8, `out` is 16-bit, or kFloat8 with
/// the scale `out_scale`.
GemmParams float8_params(const char* op, const TensorView& x, const Float8Scales& x_scales,
                         const LinearWeight& weight, Activation activation,
                         const TensorView& residual, const TensorView& out, float out_scale,
                         const int32_t* row_count, int sm_count);
/// Parameters of attention; the workspace is left null.
AttentionParams attention_params(const AttentionArgs& args, int sm_count);
/// Throws InvalidArgument where the device cannot append these.
void check_append_kv_cache(const AppendKvCacheArgs& args);
/// Parameters of attention over pages; the workspace is left null.
PagedAttentionParams paged_attention_params(const AttentionArgs& args, int sm_count);
NormParams norm_params(const NormArgs& args);

}  // namespace packhorse::cuda
