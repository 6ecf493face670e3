// Dense layers in int8. Weights are quantised by output feature, activations by row.
//
// A weight row is scale * q with q from -127 to 127; a row of activations is offset + scale * q
// with q from 0 to int8_levels(). Sums of products are exact 32-bit integers. A layer converts sums
// to floats panel by panel while they are in cache, with bias and activation. Its input x consists
// of bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/gemm/gemm_engine.h"

namespace packhorse::cpu {

/// The largest q of an activation on this machine.
int int8_levels();

/// The parts of a packed weight: first the panels (gemm_engine.h), then two vectors. `panel_bytes`
/// is what the panels take.
struct Int8Weight {
  Int8Weight(const void* packed, size_t panel_bytes, int64_t out_features);
  const void* panels;
  const float* scales;  // [out_features]
  const float* sums;    // [out_features] scale * sum of q, the factor of an offset of x
};

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

}  // namespace packhorse::cpu
