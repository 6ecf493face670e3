// Attention over pages in e4m3 (attention_pages_float8.cuh), by both kernels.
#pragma once

#include <cuda_runtime_api.h>

namespace packhorse::cuda {

struct PagedAttentionParams;
struct PagedKernelParams;

/// Raises the kernels' shared memory limits on the current device; once, before any launch.
void prepare_attention_pages_float8();

/// As launch_attention_pages does with rows of many queries, and of few.
void launch_prefill_float8(const PagedAttentionParams& args, cudaStream_t stream);
void launch_few_float8(const PagedKernelParams& params, cudaStream_t stream);

}  // namespace packhorse::cuda
