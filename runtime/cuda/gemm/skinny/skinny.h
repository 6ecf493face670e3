// Host interface of dense layers for few rows on Hopper, those of a step of generation, whose time
// is that of reading the weight once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/gemm/gemm.h"
#include "cuda/gemm/skinny/tile.h"

namespace packhorse::cuda {

/// Returns whether launch_gemm_skinny computes a layer: where it can, and was measured to be faster
/// than launch_gemm_sm90 (docs/developer/notebook/cuda_generation.md). A sum in one part is
/// computed so for up to eight rows and weights of 4 MiB or more, except long sums (k > n) over
/// more than 64 MiB.
inline bool is_skinny(const GemmParams& params) {
  if (params.rows > kMostSkinnyRows || params.pool.out != nullptr ||
      (params.gated && params.n % (2 * kGateBlock) != 0)) {
    return false;
  }
  if (params.parts > 1) return true;
  constexpr int64_t kLeast = int64_t{2} << 20;  // elements
  constexpr int64_t kMostLong = int64_t{32} << 20;
  const int64_t elements = int64_t{params.n} * params.k;
  return params.rows <= kSkinnyRows && elements >= kLeast &&
         (params.k <= params.n || elements <= kMostLong);
}

/// Launches the product. It is asynchronous on `stream`, allocates nothing and may be captured into
/// a graph; the rules are those of launch_gemm_sm90, and so are the bits of every row. Throws
/// RuntimeError.
void launch_gemm_skinny(const GemmParams& params, const KernelStream& stream);

}  // namespace packhorse::cuda
