// Token, position and type embeddings, summed and normalised in one pass.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/args.h"

namespace packhorse::cuda {

/// What a kernel found wrong in inputs that only the device has seen. Lives in host memory that
/// kernels can write; `code` is 0 while nothing is wrong, and the first finding stays.
struct DeviceStatus {
  enum Code : int32_t { kFine = 0, kWordId = 1, kPositionId = 2, kTypeId = 3 };
  int32_t code;
  int32_t index;  // token
  int32_t found;
  int32_t limit;  // expected in [0, limit)
};

/// Arguments as checked by Ops; tables and `out` of one 16-bit dtype, rows of a multiple of 8
/// columns. An id outside its table is clamped to it and reported in `status`.
void launch_embed(const EmbedArgs& args, DeviceStatus* status, cudaStream_t stream);

}  // namespace packhorse::cuda
