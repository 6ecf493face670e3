#include "cuda/check.h"
#include "cuda/norm.h"
#include "cuda/row.cuh"

namespace packhorse::cuda {
namespace {

// Rows of a block that gives each warp a row of its own.
constexpr int kWarpRows = 4;

template <class T>
struct NormRow {
  const T* x;
  const T* residual;
  T* out;

  __device__ NormRow(const NormParams& params, int64_t row)
      : x(static_cast<const T*>(params.x) + row * params.x_stride),
        residual(params.residual == nullptr
                     ? nullptr
                     : static_cast<const T*>(params.residual) + row * params.residual_stride),
        out(static_cast<T*>(params.out) + row * params.out_stride) {}
};

__device__ int64_t row_count(const NormParams& params) {
  return params.row_count == nullptr ? params.rows : *params.row_count;
}

// One pass over memory: a row is read once, normalised in registers and written once.
template <class T, int kThreads, int kVectors>
__global__ void __launch_bounds__(kThreads == 32 ? 32 * kWarpRows : kThreads)
    norm_kernel(const __grid_constant__ NormParams params) {
  __shared__ float scratch[64];
  const int64_t row =
      kThreads == 32 ? int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32 : blockIdx.x;
  if (row >= row_count(params)) return;
  const NormRow<T> at(params, row);
  Row<kThreads, kVectors> values(static_cast<int>(params.columns));
  values.add(at.x);
  if (at.residual != nullptr) values.add(at.residual);
  values.normalize(params.weight, scratch);
  values.store(at.out);
}

template <class T>
__global__ void __launch_bounds__(kFoldThreads)
    norm_folded_kernel(const __grid_constant__ NormParams params) {
  __shared__ float scratch[64];
  if (blockIdx.x >= row_count(params)) return;
  const NormRow<T> at(params, blockIdx.x);
  fold_row(
      static_cast<int>(params.columns),
      [&](float (&value)[kVectorSize], int column) {
        add_vector(value, at.x + column);
        if (at.residual != nullptr) add_vector(value, at.residual + column);
      },
      params.weight, at.out, scratch);
}

}  // namespace

void launch_norm(const NormParams& params, cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(params.rows);
  if (rows == 0) return;
  dispatch_dtype(params.dtype, [&]<class T>() {
    dispatch_row(params.columns, [&]<int kThreads, int kVectors>() {
      if constexpr (kVectors == 0) {
        norm_folded_kernel<T><<<rows, kThreads, 0, stream>>>(params);
      } else if constexpr (kThreads == 32) {
        const unsigned blocks = (rows + kWarpRows - 1) / kWarpRows;
        norm_kernel<T, kThreads, kVectors><<<blocks, 32 * kWarpRows, 0, stream>>>(params);
      } else {
        norm_kernel<T, kThreads, kVectors><<<rows, kThreads, 0, stream>>>(params);
      }
    });
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace packhorse::cuda
