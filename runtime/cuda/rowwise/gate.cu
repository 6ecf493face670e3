// The kernel of a gated feed-forward block, for devices whose GEMM does not apply the gate itself.
// x holds blocks of kGateBlock columns of the gate and of `up` in turn; each thread multiplies
// eight columns.
#include "cuda/common/epilogue.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/vector.cuh"
#include "cuda/rowwise/gate.h"

namespace packhorse::cuda {
namespace {

constexpr int kThreads = 256;
static_assert(kGateBlock % kVectorSize == 0);

/// A thread computes eight columns of a row.
template <class T>
__global__ void __launch_bounds__(kThreads) gate_kernel(const __grid_constant__ GateParams params) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t vectors = params.columns / kVectorSize;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = index / vectors;
  if (row >= (params.row_count == nullptr ? params.rows : *params.row_count)) return;
  const int64_t column = index % vectors * kVectorSize;
  const T* gate = static_cast<const T*>(params.x) + row * 2 * params.columns +
                  column / kGateBlock * 2 * kGateBlock + column % kGateBlock;
  float value[kVectorSize], up[kVectorSize];
  load_vector(value, gate);
  load_vector(up, gate + kGateBlock);
  activate<kVectorSize>(value, params.activation);
#pragma unroll
  for (int i = 0; i < kVectorSize; ++i) value[i] *= up[i];
  store_vector(static_cast<T*>(params.out) + row * params.columns + column, value);
}

}  // namespace

void launch_gate(const GateParams& params, const KernelStream& stream) {
  const int64_t vectors = params.rows * params.columns / kVectorSize;
  if (vectors == 0) return;
  const auto blocks = static_cast<unsigned>((vectors + kThreads - 1) / kThreads);
  dispatch_dtype(params.dtype, [&]<class T>() {
    launch_kernel(gate_kernel<T>, blocks, kThreads, 0, stream, params);
  });
}

}  // namespace packhorse::cuda
