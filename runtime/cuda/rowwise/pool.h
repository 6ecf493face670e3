// Pooling of packed sequences to one vector each.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args/rowwise.h"

namespace packhorse::cuda {

/// Arguments as checked by Ops; x 16-bit, `out` of its dtype or float32. Rows of x are read by
/// eight columns, to the end of the eight that the last one belongs to.
/// A sequence's rows are summed in an order that its length alone fixes. An embedding shorter than
/// 1e-12 is divided by that instead of its length.
void launch_pool(const PoolArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
