// Kernels that convert rows between dtypes. cast_kernel goes over all elements, eight at a time
// where rows and alignment allow it; cast_unit_rows_kernel also divides each row by its Euclidean
// norm.
#include <algorithm>

#include "core/math.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/reduce.cuh"
#include "cuda/common/vector.cuh"
#include "cuda/rowwise/rowwise.h"

namespace packhorse::cuda {
namespace {

__device__ float scaled(const CastArgs& args, float value) {
  value *= args.scale;
  return args.soft_cap > 0 ? args.soft_cap * tanhf(value / args.soft_cap) : value;
}

/// Returns the row of x that becomes row `row` of `out`, or -1 where that becomes zeros.
__device__ int64_t source_row(const CastArgs& args, int64_t row) {
  if (args.row_count != nullptr && row >= *args.row_count) return -1;
  if (args.cu_seqlens != nullptr && args.cu_seqlens[row] == args.cu_seqlens[row + 1]) return -1;
  return args.rows == nullptr ? row : args.rows[row];
}

template <class From, class To, bool kVectors>
__global__ void __launch_bounds__(256) cast_kernel(const __grid_constant__ CastArgs args) {
  constexpr int kSize = kVectors ? kVectorSize : 1;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t columns = args.out.shape[1] / kSize;
  const int64_t size = args.out.shape[0] * columns;
  for (int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x; i < size; i += gridDim.x * 256) {
    const int64_t row = i / columns;
    const int64_t column = (i - row * columns) * kSize;
    const int64_t source = source_row(args, row);
    const From* from = static_cast<const From*>(args.x.data) + source * args.x.row_stride + column;
    To* to = static_cast<To*>(args.out.data) + row * args.out.row_stride + column;
    if constexpr (kVectors) {
      float value[kVectorSize] = {};
      if (source >= 0 && column < args.x.shape[1]) load_vector(value, from);
#pragma unroll
      for (float& x : value) x = scaled(args, x);
      store_vector(to, value);
    } else {
      const bool exists = source >= 0 && column < args.x.shape[1];
      *to = Element<To>::from(exists ? scaled(args, to_float(*from)) : 0);
    }
  }
}

// A warp has one row, which it reads twice: for its norm and for its result.
template <class From, class To>
__global__ void __launch_bounds__(256)
    cast_unit_rows_kernel(const __grid_constant__ CastArgs args) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t row = int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
  if (row >= args.out.shape[0]) return;
  const int64_t source = source_row(args, row);
  const From* from = static_cast<const From*>(args.x.data) + source * args.x.row_stride;
  const auto value = [&](int64_t i) {
    return source >= 0 && i < args.x.shape[1] ? to_float(from[i]) : 0.0f;
  };
  To* to = static_cast<To*>(args.out.data) + row * args.out.row_stride;
  float squares = 0;
  for (int64_t i = threadIdx.x % 32; i < args.out.shape[1]; i += 32) {
    squares += value(i) * value(i);
  }
  const float divisor = fmaxf(sqrtf(warp_sum(squares)), 1e-12f);
  for (int64_t i = threadIdx.x % 32; i < args.out.shape[1]; i += 32) {
    to[i] = Element<To>::from(value(i) / divisor);
  }
}

template <class From, class To>
void launch_cast_to(CastArgs args, const KernelStream& stream) {
  if (args.normalize) {
    const auto blocks = block_count(args.out.shape[0], 8);
    launch_kernel(cast_unit_rows_kernel<From, To>, dim3(blocks), 256, 0, stream, args);
    return;
  }
  // Contiguous tensors whose rows are all converted are treated as one long row: vectors fit more
  // often, and no row has to be found by division.
  const int64_t size = args.out.shape[0] * args.out.shape[1];
  if (args.rows == nullptr && args.row_count == nullptr && args.cu_seqlens == nullptr &&
      args.padding == 0 && args.x.row_stride == args.x.shape[1] &&
      args.out.row_stride == args.out.shape[1]) {
    for (TensorView* view : {&args.x, &args.out}) {
      view->shape[0] = 1;
      view->shape[1] = view->row_stride = size;
    }
  }
  const bool vectors = takes_vectors(args.x) && takes_vectors(args.out);
  const int64_t items = size / (vectors ? kVectorSize : 1);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(items, 256), 1 << 20));
  if (vectors) {
    launch_kernel(cast_kernel<From, To, true>, dim3(blocks), 256, 0, stream, args);
  } else {
    launch_kernel(cast_kernel<From, To, false>, dim3(blocks), 256, 0, stream, args);
  }
}

template <class Launch>
void dispatch_any_dtype(DType dtype, Launch launch) {
  if (dtype == DType::kFloat32) return launch.template operator()<float>();
  dispatch_dtype(dtype, launch);
}

}  // namespace

void launch_cast(const CastArgs& args, const KernelStream& stream) {
  if (args.out.shape[0] == 0 || args.out.shape[1] == 0) return;
  dispatch_any_dtype(args.x.dtype, [&]<class From>() {
    dispatch_any_dtype(args.out.dtype, [&]<class To>() { launch_cast_to<From, To>(args, stream); });
  });
}

}  // namespace packhorse::cuda
