// Pooling of packed sequences to one vector each.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/rowwise.h"

namespace packhorse::cuda {

/// Computes PoolArgs, checked by Ops; x is 16-bit, `out` of its dtype or float32. Rows of x are
/// read eight columns at a time, up to the next multiple of eight. A sequence's rows are summed in
/// an order that its length alone fixes. With `normalize`, an embedding whose norm is below 1e-12
/// is divided by 1e-12. Asynchronous on `stream`. Throws RuntimeError.
void launch_pool(const PoolArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
