// CUDA_CHECK, through which every CUDA call goes: an error becomes an exception that says where and
// what.
#pragma once

#include <cuda_runtime_api.h>

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse::cuda {

[[noreturn]] inline void throw_cuda_error(cudaError_t error, const char* what, const char* file,
                                          int line) {
  cudaGetLastError();  // clears the error, so that the next check does not see it again
  const std::string message = concat(file, ":", line, ": ", what, ": ", cudaGetErrorName(error),
                                     ": ", cudaGetErrorString(error));
  if (error == cudaErrorMemoryAllocation) throw OutOfMemory(message);
  throw RuntimeError(message);
}

}  // namespace packhorse::cuda

/// Throws OutOfMemory where an allocation failed, and RuntimeError for any other failure.
#define CUDA_CHECK(call)                                                                \
  do {                                                                                  \
    const cudaError_t cuda_check_error = (call);                                        \
    if (cuda_check_error != cudaSuccess)                                                \
      ::packhorse::cuda::throw_cuda_error(cuda_check_error, #call, __FILE__, __LINE__); \
  } while (0)
