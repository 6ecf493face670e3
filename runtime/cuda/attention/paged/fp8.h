// Attention over pages in e4m3 (attention/paged/fp8.cuh), by both kernels.
#pragma once

#include "cuda/attention/paged/paged.h"
#include "cuda/device/stream.h"

namespace packhorse::cuda {

struct PagedKernelParams;

/// As prepare_attention_pages.
void prepare_attention_pages_float8(const DeviceCaps& caps);

/// Bytes of shared memory of the kernel for few rows.
size_t decode_float8_shared_bytes(const AttentionArgs& args);

/// As launch_attention_pages does with rows of many queries, and of few.
void launch_prefill_float8(const AttentionArgs& args, const KernelStream& stream);
void launch_decode_float8(const PagedKernelParams& params, const KernelStream& stream);

}  // namespace packhorse::cuda
