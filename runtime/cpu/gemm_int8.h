// Dense layers in int8. Weights are quantised by output feature, activations by row.
//
// A weight row is scale * q with q from -127 to 127; a row of activations is offset + scale * q
// with q from 0 to int8_levels(). Sums of products are exact 32-bit integers, so neither block
// sizes nor kernels can change a bit of them, provided that no sum saturates on the way. Without
// VNNI, oneDNN's kernels add pairs of products in 16 bits; there, q of activations stays below 128.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cpu/gemm.h"

namespace packhorse::cpu {

/// The largest q of an activation on this machine.
int int8_levels();

size_t packed_int8_bytes(int64_t in_features, int64_t out_features);
/// Quantises and packs a float32 matrix [out_features, in_features]: scale = max |w| / 127 of the
/// row, q = w / scale rounded to nearest, ties to even. Throws InvalidArgument if a sum of
/// in_features products could exceed 32 bits.
void pack_int8_weight(const float* weight, int64_t in_features, int64_t out_features, void* packed,
                      ThreadPool& pool);
/// Packs a matrix [out_features, in_features] that is quantised already, with `scales`
/// [out_features].
void pack_int8_weight(const int8_t* weight, const float* scales, int64_t in_features,
                      int64_t out_features, void* packed, ThreadPool& pool);

/// Makes an int8 dense layer. It converts sums to floats panel by panel while they are in cache,
/// with bias and activation. Its input x consists of bytes and is read up to the next multiple of
/// 64 rows. Throws RuntimeError if oneDNN has no kernel, or none that is exact.
std::unique_ptr<Gemm> make_int8_gemm(const DenseShape& shape, GemmWorkers& workers);

}  // namespace packhorse::cpu
