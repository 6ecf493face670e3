// Host interface of attention over pages in e4m3 (attention/paged/fp8_numbers.cuh).
#pragma once

#include "cuda/attention/paged/paged.h"
#include "cuda/device/stream.h"

namespace packhorse::cuda {

struct PagedKernelParams;

/// Raises the shared memory limits of the kernels for pages in e4m3, once, before any launch.
void prepare_attention_pages_float8(const DeviceCaps& caps);

/// Bytes of shared memory of the kernel for few rows.
size_t decode_float8_shared_bytes(const AttentionArgs& args);

/// Launch the kernel for many query rows, and the one for few. Asynchronous on `stream`; throw
/// RuntimeError.
void launch_prefill_float8(const AttentionArgs& args, const KernelStream& stream);
void launch_decode_float8(const PagedKernelParams& params, const KernelStream& stream);

}  // namespace packhorse::cuda
