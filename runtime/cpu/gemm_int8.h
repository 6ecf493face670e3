// Products of bytes: weights quantised by output feature, activations by row.
//
// A weight row is scale * q with q from -127 to 127; a row of activations is offset + scale * q
// with q from 0 to int8_levels(). Sums of products are exact 32-bit integers, so no block size and
// no kernel can change a bit of them, as long as none saturates on the way: without VNNI, oneDNN's
// kernels add pairs of products in 16 bits, and q of activations stays below 128 there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cpu/gemm.h"

namespace packhorse::cpu {

/// The largest q of an activation on this machine.
int int8_levels();

size_t packed_int8_bytes(int64_t in_features, int64_t out_features);
/// Quantises a float32 [out_features, in_features] matrix: scale = max |w| / 127 of the row,
/// q = w / scale rounded to nearest, ties to even. Throws InvalidArgument where a sum of so many
/// products could leave 32 bits.
void pack_int8_weight(const float* weight, int64_t in_features, int64_t out_features, void* packed,
                      ThreadPool& pool);
/// The same of a matrix that is quantised already.
void pack_int8_weight(const int8_t* weight, const float* scales, int64_t in_features,
                      int64_t out_features, void* packed, ThreadPool& pool);

/// Sums become floats panel by panel while they are in cache, with bias and activation. x is of
/// bytes, and read up to the next multiple of 64 rows. Throws RuntimeError when oneDNN has no
/// kernel, or none that is exact.
std::unique_ptr<Gemm> make_int8_gemm(const DenseShape& shape, GemmWorkers& workers);

}  // namespace packhorse::cpu
