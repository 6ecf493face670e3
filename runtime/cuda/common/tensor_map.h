// Tensor maps, which describe a matrix in global memory to TMA (the Tensor Memory Accelerator).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/format.h"
#include "cuda/device/check.h"
#include "packhorse/error.h"
#include "packhorse/types.h"

namespace packhorse::cuda {

/// Returns the driver's function that encodes tensor maps. It is found through the runtime, so that
/// nothing has to link libcuda.
inline auto tensor_map_encoder() {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess) {
      throw RuntimeError("the CUDA driver has no cuTensorMapEncodeTiled: it must be 12.0 or newer");
    }
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return encode;
}

/// Returns the element type of maps of a dtype; e4m3 maps have bytes.
inline CUtensorMapDataType map_dtype(DType dtype) {
  return dtype == DType::kFloat8    ? CU_TENSOR_MAP_DATA_TYPE_UINT8
         : dtype == DType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                    : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

/// Returns the swizzle of boxes whose rows have `row_bytes` bytes: 32, 64 or 128.
inline CUtensorMapSwizzle map_swizzle(int row_bytes) {
  return row_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
         : row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                           : CU_TENSOR_MAP_SWIZZLE_32B;
}

/// Returns a map of a matrix [rows, columns] of 16-bit floats or kFloat8 whose rows are `stride`
/// elements apart. Rows of a box are 32, 64 or 128 bytes long, and swizzled over that length. Reads
/// past the matrix give zeros, and writes past it do nothing.
inline CUtensorMap matrix_tensor_map(const void* data, DType dtype, int64_t rows, int64_t columns,
                                     int64_t stride, int box_rows, int box_columns) {
  const cuuint64_t extents[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride) * size_of(dtype)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_columns),
                             static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  CUtensorMap map;
  const CUresult result = tensor_map_encoder()(
      &map, map_dtype(dtype), 2, const_cast<void*>(data), extents, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, map_swizzle(static_cast<int>(size_of(dtype)) * box_columns),
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw RuntimeError(concat("cuTensorMapEncodeTiled failed with ", static_cast<int>(result),
                              " for a matrix of ", rows, " x ", columns, ", rows ", stride,
                              " elements apart"));
  }
  return map;
}

}  // namespace packhorse::cuda
