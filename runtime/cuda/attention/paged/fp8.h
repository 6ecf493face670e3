// Attention over pages in e4m3 (attention/paged/fp8.cuh), by both kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace packhorse::cuda {

struct PagedAttentionParams;
struct PagedKernelParams;

/// Raises the kernels' shared memory limits on the current device, as prepare_attention_pages does.
void prepare_attention_pages_float8(size_t most_shared_bytes);

/// Bytes of shared memory of the kernel for few rows.
size_t decode_float8_shared_bytes(const PagedAttentionParams& args);

/// Launch the kernels for rows of many queries, and of few, as launch_attention_pages does.
void launch_prefill_float8(const PagedAttentionParams& args, cudaStream_t stream);
void launch_decode_float8(const PagedKernelParams& params, cudaStream_t stream);

}  // namespace packhorse::cuda
