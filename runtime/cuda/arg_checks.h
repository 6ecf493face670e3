// Checks of what CUDA needs beyond what Ops has checked: 16-bit floats, rows of whole 16-byte
// vectors, and sizes of 32 bits. The functions throw InvalidArgument that names the operator, the
// argument, what was found and what was expected.
#pragma once

#include <cstdint>

#include "ops/args/common.h"

namespace packhorse::cuda {

constexpr int64_t kMultiple = 8;         // elements of 16 bits in a 16-byte access
constexpr int64_t kFloat8Multiple = 16;  // and of kFloat8

/// Checks that `dtype` is one that CUDA computes in.
void check_compute(const char* op, DType dtype);
/// Checks that the rows of `view` can be read 16 bytes at a time.
void check_vectors(const char* op, const char* name, const TensorView& view);
/// Checks that `value` fits 32 bits.
int32_t to_int32(const char* op, const char* name, int64_t value);
/// Checks that the sizes of a batch, or of a dense layer, fit 32 bits.
void check_int32(const char* op, const BatchView& batch);
void check_int32(const char* op, const TensorView& x, const LinearWeight& weight);

}  // namespace packhorse::cuda
