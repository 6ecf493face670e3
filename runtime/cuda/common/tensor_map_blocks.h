// Tensor maps of more than two dimensions.
#pragma once

#include <algorithm>

#include "cuda/common/tensor_map.h"

namespace packhorse::cuda {

/// Returns a map of a tensor with `rank` dimensions, the innermost first: its extents, the strides
/// of all but the innermost in bytes, and the box of a copy. Reads past the tensor give zeros.
template <int rank>
CUtensorMap tensor_map(const void* data, CUtensorMapDataType dtype, CUtensorMapSwizzle swizzle,
                       const cuuint64_t (&extents)[rank], const cuuint64_t (&strides)[rank - 1],
                       const cuuint32_t (&box)[rank]) {
  cuuint32_t steps[rank];
  std::fill_n(steps, rank, 1);
  CUtensorMap map;
  const CUresult result =
      tensor_map_encoder()(&map, dtype, rank, const_cast<void*>(data), extents, strides, box, steps,
                           CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw RuntimeError(concat("cuTensorMapEncodeTiled failed with ", static_cast<int>(result),
                              " for a tensor of ", rank, " dimensions, the inner ones ", extents[1],
                              " x ", extents[0], ", rows ", strides[0], " bytes apart"));
  }
  return map;
}

/// Returns a map of a 16-bit tensor whose boxes are 64 elements wide and swizzled over that width;
/// strides are in bytes, and reads past the tensor give zeros.
template <int rank>
CUtensorMap tensor_map(const void* data, DType dtype, const cuuint64_t (&extents)[rank],
                       const cuuint64_t (&strides)[rank - 1], const cuuint32_t (&box)[rank]) {
  return tensor_map<rank>(data, map_dtype(dtype), CU_TENSOR_MAP_SWIZZLE_128B, extents, strides,
                          box);
}

/// Returns a map of a 16-bit matrix [rows, k] with rows `stride` elements apart, in four
/// dimensions: the 64 elements of a block of k, the rows, the blocks of a part of the sum over k,
/// and the `parts`. One copy can bring several blocks of several parts. `box`: rows, blocks of a
/// part, parts. Blocks past the end of a part are zeros.
inline CUtensorMap split_k_tensor_map(const void* data, DType dtype, int32_t rows, int32_t k,
                                      int64_t stride, int32_t parts, const int32_t (&box)[3]) {
  const auto blocks = static_cast<cuuint64_t>(k / 64 / parts);  // blocks of a part
  return tensor_map<4>(data, dtype,
                       {64, static_cast<cuuint64_t>(rows), blocks, static_cast<cuuint64_t>(parts)},
                       {static_cast<cuuint64_t>(stride) * 2, 128, blocks * 128},
                       {64, static_cast<cuuint32_t>(box[0]), static_cast<cuuint32_t>(box[1]),
                        static_cast<cuuint32_t>(box[2])});
}

}  // namespace packhorse::cuda
