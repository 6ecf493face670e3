// Conversion between dtypes on CUDA.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/rowwise.h"

namespace packhorse::cuda {

/// Converts any of float32, float16 and bfloat16 to any of them, with any number of columns and any
/// alignment. `x` may lie in page-locked host memory.
void launch_cast(const CastArgs& args, const KernelStream& stream);

/// True if rows consist of whole vectors of eight elements, aligned to 16 bytes.
inline bool takes_vectors(const TensorView& view) {
  return view.shape[1] % 8 == 0 && view.row_stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
}

}  // namespace packhorse::cuda
