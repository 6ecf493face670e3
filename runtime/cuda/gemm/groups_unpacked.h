// Products of many rows with weights in groups, by way of float16: a kernel writes the numbers that
// the weight stands for to memory, and the Hopper kernels of float16 layers multiply them.
//
// A weight is unpacked once, where the kernels of gemm_groups_many_kernel.cuh do it for every tile
// of rows. Bits are the same: the numbers are, tensor cores sum them 16 input features at a time in
// order whichever operand the weight is, and sums are cut as GroupsSplit says. So the number of
// rows may decide between the two.
//
// What is unpacked at a time is a slice of the output features, which bounds the memory. A result
// does not depend on what is computed beside it.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "cuda/gemm/gemm.h"
#include "cuda/gemm/groups_layout.h"

namespace packhorse::cuda {

/// The number of rows from which a product pays for writing its weight to memory and reading it
/// again.
inline constexpr int64_t kLeastUnpackedRows = 1024;
/// The most bytes of a slice.
inline constexpr int64_t kMostUnpackedBytes = int64_t{128} << 20;
/// Slices begin at multiples of so many output features, which are whole tiles, strips and blocks
/// of a gate.
inline constexpr int32_t kUnpackedUnit = 128;

/// The bytes that are needed for a weight [n, k].
inline size_t unpacked_bytes(int64_t n, int64_t k) {
  return static_cast<size_t>(std::min(2 * n * k, kMostUnpackedBytes));
}

/// The output features of a slice of the weight [n, k]; 0 if there is no room for `unit`, of which
/// they are a multiple unless there is one slice.
inline int32_t unpacked_features(int64_t n, int64_t k, int64_t unit) {
  const int64_t most = static_cast<int64_t>(unpacked_bytes(n, k)) / (2 * k);
  if (most >= n) return static_cast<int32_t>(n);
  const int64_t units = most / unit;
  if (units == 0) return 0;
  const int64_t all = (n + unit - 1) / unit;
  const int64_t slices = (all + units - 1) / units;
  return static_cast<int32_t>((all + slices - 1) / slices * unit);
}

/// Likewise of a layer. A slice has whole heads where they are rotated. The kernels of float16
/// layers do one thing more to a result than adding the bias: so it is 0 for those that ask for
/// two.
inline int32_t unpacked_features(const GemmParams& p) {
  const bool rotated = p.rotation.positions != nullptr;
  const bool activated = p.activation != Activation::kNone;
  if ((p.gated && (rotated || p.residual != nullptr)) ||
      (rotated && (activated || p.residual != nullptr))) {
    return 0;
  }
  const int64_t unit =
      rotated ? std::lcm<int64_t>(kUnpackedUnit, p.rotation.head_dim) : int64_t{kUnpackedUnit};
  return unpacked_features(p.n, p.k, unit);
}

/// Returns the layer of `features` output features of `p` from `first` on, whose weight in float16
/// is at `unpacked`.
inline GemmParams unpacked_slice(const GemmParams& p, int32_t first, int32_t features,
                                 const void* unpacked) {
  GemmParams slice = p;
  const GroupsSplit split = groups_split(p.n, p.k);
  const int64_t column = p.gated ? first / 2 : first;
  slice.groups = {};
  slice.weight = unpacked;
  slice.fresh_weight = true;
  slice.n = features;
  slice.parts = split.splits;
  slice.part_length = split.blocks * kGroupsBlock;
  if (p.bias != nullptr) slice.bias = p.bias + first;
  if (p.residual != nullptr) {
    slice.residual = static_cast<const uint16_t*>(p.residual) + column;
  }
  slice.out = static_cast<uint16_t*>(p.out) + column;
  slice.rotation.columns = p.rotation.columns - first;
  if (slice.rotation.columns <= 0) slice.rotation = {};
  return slice;
}

/// Writes the `features` output features from `first` on, a multiple of 16, of the layer's weight
/// to `out`, [features, k] float16. Asynchronous on `stream`; the weight is read ahead of the
/// kernel's wait, and `out` is written after it (cuda/launch.cuh). For compute capability 9.0
/// exactly.
void launch_unpack_groups(const GemmParams& params, int32_t first, int32_t features, void* out,
                          cudaStream_t stream);

}  // namespace packhorse::cuda
