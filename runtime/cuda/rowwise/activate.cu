#include "cuda/common/activations.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/rowwise/row.cuh"
#include "cuda/rowwise/rowwise.h"

namespace packhorse::cuda {
namespace {

constexpr int kThreads = 256;
static_assert(kGateBlock % kVectorSize == 0);

/// A thread computes eight columns of a row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    activate_kernel(const __grid_constant__ ActivateArgs args) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t columns = args.out.shape[1];
  const int64_t index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kVectorSize;
  const int64_t row = index / columns;
  if (row >= (args.row_count == nullptr ? args.out.shape[0] : *args.row_count)) return;
  if (args.slots != nullptr) {
    const int slot = args.slots[row];
    if (slot < 0 || args.ranks[slot] == 0) return;
  }
  const int64_t column = index % columns;
  const T* x = static_cast<const T*>(args.x.data) + row * args.x.row_stride;
  float value[kVectorSize];
  if (args.gated) {
    x += column / kGateBlock * 2 * kGateBlock + column % kGateBlock;
    float up[kVectorSize];
    load_vector(value, x);
    load_vector(up, x + kGateBlock);
    activate<kVectorSize>(value, args.activation);
#pragma unroll
    for (int i = 0; i < kVectorSize; ++i) value[i] *= up[i];
  } else {
    load_vector(value, x + column);
    activate<kVectorSize>(value, args.activation);
  }
  store_vector(static_cast<T*>(args.out.data) + row * args.out.row_stride + column, value);
}

}  // namespace

void launch_activate(const ActivateArgs& args, const KernelStream& stream) {
  const int64_t vectors = args.out.size() / kVectorSize;
  if (vectors == 0) return;
  dispatch_dtype(args.x.dtype, [&]<class T>() {
    launch_kernel(activate_kernel<T>, block_count(vectors, kThreads), kThreads, 0, stream, args);
  });
}

}  // namespace packhorse::cuda
