#include <algorithm>

#include "cuda/launch.cuh"
#include "cuda/rows/pool.h"
#include "cuda/rows/raise.cuh"
#include "cuda/rows/row.cuh"

namespace packhorse::cuda {
namespace {

// A block pools 64 columns (128 bytes of each row) of one sequence: 8 threads across, 32 down.
constexpr int kAcross = 8;
constexpr int kDown = 32;
constexpr int kBlockColumns = kAcross * kVectorSize;
constexpr int kInFlight = 8;  // rows that a thread asks for before it looks at one

__device__ int64_t sequence_count(const BatchView& batch) {
  return batch.counts == nullptr ? batch.num_sequences : batch.counts[1];
}

// `weight`: of a sum's term.
template <bool kMax>
__device__ void combine(float (&to)[kVectorSize], const float (&from)[kVectorSize],
                        float weight = 1) {
#pragma unroll
  for (int i = 0; i < kVectorSize; ++i) {
    to[i] = kMax ? max_nan(to[i], from[i]) : to[i] + weight * from[i];
  }
}

template <class T, class Out, bool kMax>
__global__ void __launch_bounds__(kAcross* kDown)
    pool_kernel(const __grid_constant__ PoolArgs args) {
  __shared__ float partial[kDown][kBlockColumns + 4];
  wait_for_previous_kernel();
  let_next_kernel_start();
  // Blocks of one sequence follow each other: they read neighbouring parts of its rows.
  const unsigned parts = (args.x.shape[1] + kBlockColumns - 1) / kBlockColumns;
  const int64_t sequence = blockIdx.x / parts;
  const int part = static_cast<int>(blockIdx.x % parts);
  if (sequence >= sequence_count(args.batch)) return;
  int begin = args.batch.cu_seqlens[sequence];
  int end = args.batch.cu_seqlens[sequence + 1];
  const int length = end - begin;
  if (args.pooling == Pooling::kCls) end = min(end, begin + 1);
  if (args.pooling == Pooling::kLast) begin = max(begin, end - 1);
  const bool weighted = args.pooling == Pooling::kWeightedMean;

  const int across = threadIdx.x % kAcross;
  const int down = threadIdx.x / kAcross;
  const int column = part * kBlockColumns + across * kVectorSize;
  const bool inside = column < args.x.shape[1];
  float value[kVectorSize];
#pragma unroll
  for (float& x : value) x = kMax ? -INFINITY : 0.0f;
  if (inside) {
    const T* x = static_cast<const T*>(args.x.data) + column;
    for (int first = begin + down; first < end; first += kInFlight * kDown) {
      uint4 bits[kInFlight] = {};
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int64_t row = first + i * kDown;
        if (row < end) bits[i] = *reinterpret_cast<const uint4*>(x + row * args.x.row_stride);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int row = first + i * kDown;
        if (row >= end) break;
        float more[kVectorSize];
        unpack<T>(more, bits[i]);
        combine<kMax>(value, more, weighted ? static_cast<float>(row - begin + 1) : 1.0f);
      }
    }
  }
  store_vector(&partial[down][across * kVectorSize], value);
  for (int half = kDown / 2; half > 0; half /= 2) {
    __syncthreads();
    if (down < half) {
      float other[kVectorSize];
      load_vector(other, &partial[down + half][across * kVectorSize]);
      combine<kMax>(value, other);
      store_vector(&partial[down][across * kVectorSize], value);
    }
  }
  if (down != 0 || !inside) return;
  float divisor = 1;
  if (args.pooling == Pooling::kMean) divisor = static_cast<float>(length);
  if (weighted) divisor = 0.5f * static_cast<float>(length) * static_cast<float>(length + 1);
  if (args.pooling == Pooling::kMeanSqrt) divisor = sqrtf(static_cast<float>(length));
#pragma unroll
  for (float& x : value) x = length <= 0 ? 0.0f : x / divisor;
  store_vector(static_cast<Out*>(args.out.data) + sequence * args.out.row_stride + column, value);
}

// In place: a block per pooled row.
template <class Out>
__global__ void __launch_bounds__(256) unit_length_kernel(const __grid_constant__ PoolArgs args) {
  __shared__ float scratch[32];
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (blockIdx.x >= sequence_count(args.batch)) return;
  Out* row = static_cast<Out*>(args.out.data) + blockIdx.x * args.out.row_stride;
  const auto for_each = [&](auto visit) {
    for (int column = threadIdx.x * kVectorSize; column < args.out.shape[1];
         column += 256 * kVectorSize) {
      float value[kVectorSize];
      load_vector(value, row + column);
      visit(value, column);
    }
  };
  float squares[1] = {};
  for_each([&](const float (&value)[kVectorSize], int) {
    for (float x : value) squares[0] += x * x;
  });
  group_sum<256>(squares, scratch);
  const float length = sqrtf(squares[0]);
  const float divisor = length < 1e-12f ? 1e-12f : length;
  for_each([&](float (&value)[kVectorSize], int column) {
    for (float& x : value) x /= divisor;
    store_vector(row + column, value);
  });
}

template <class T, class Out>
void launch_pool_to(const PoolArgs& args, cudaStream_t stream) {
  const auto sequences = static_cast<unsigned>(args.batch.num_sequences);
  const auto columns = static_cast<unsigned>(args.x.shape[1]);
  const unsigned blocks = sequences * ((columns + kBlockColumns - 1) / kBlockColumns);
  if (args.pooling == Pooling::kMax) {
    launch_kernel(pool_kernel<T, Out, true>, dim3(blocks), kAcross * kDown, 0, stream, args);
  } else {
    launch_kernel(pool_kernel<T, Out, false>, dim3(blocks), kAcross * kDown, 0, stream, args);
  }
  if (args.normalize) {
    launch_kernel(unit_length_kernel<Out>, dim3(sequences), 256, 0, stream, args);
  }
}

template <class From, class To, bool kVectors>
__global__ void __launch_bounds__(256) cast_kernel(const __grid_constant__ CastArgs args) {
  constexpr int kSize = kVectors ? kVectorSize : 1;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t columns = args.x.shape[1] / kSize;
  const int64_t size = args.x.shape[0] * columns;
  for (int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x; i < size; i += gridDim.x * 256) {
    const int64_t row = i / columns;
    const int64_t column = (i - row * columns) * kSize;
    const From* from = static_cast<const From*>(args.x.data) + row * args.x.row_stride + column;
    To* to = static_cast<To*>(args.out.data) + row * args.out.row_stride + column;
    if constexpr (kVectors) {
      float value[kVectorSize];
      load_vector(value, from);
      store_vector(to, value);
    } else {
      *to = Element<To>::from(to_float(*from));
    }
  }
}

// A warp has a row.
template <class From, class To>
__global__ void __launch_bounds__(256)
    cast_unit_rows_kernel(const __grid_constant__ CastArgs args) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t row = int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
  if (row >= args.x.shape[0]) return;
  const From* from = static_cast<const From*>(args.x.data) + row * args.x.row_stride;
  To* to = static_cast<To*>(args.out.data) + row * args.out.row_stride;
  float squares = 0;
  for (int64_t i = threadIdx.x % 32; i < args.x.shape[1]; i += 32) {
    const float value = to_float(from[i]);
    squares += value * value;
  }
  const float divisor = fmaxf(sqrtf(warp_sum(squares)), 1e-12f);
  for (int64_t i = threadIdx.x % 32; i < args.x.shape[1]; i += 32) {
    to[i] = Element<To>::from(to_float(from[i]) / divisor);
  }
}

bool takes_vectors(const TensorView& view) {
  return view.shape[1] % kVectorSize == 0 && view.row_stride % kVectorSize == 0 &&
         reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
}

template <class From, class To>
void launch_cast_to(CastArgs args, cudaStream_t stream) {
  if (args.normalize) {
    const auto blocks = static_cast<unsigned>((args.x.shape[0] + 7) / 8);
    launch_kernel(cast_unit_rows_kernel<From, To>, dim3(blocks), 256, 0, stream, args);
    return;
  }
  // Contiguous tensors are one long row: no division worth mentioning, and longer vectors.
  const int64_t size = args.x.shape[0] * args.x.shape[1];
  if (args.x.row_stride == args.x.shape[1] && args.out.row_stride == args.out.shape[1]) {
    for (TensorView* view : {&args.x, &args.out}) {
      view->shape[0] = 1;
      view->shape[1] = view->row_stride = size;
    }
  }
  const bool vectors = takes_vectors(args.x) && takes_vectors(args.out);
  const int64_t items = size / (vectors ? kVectorSize : 1);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((items + 255) / 256, 1 << 20));
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

void launch_pool(const PoolArgs& args, cudaStream_t stream) {
  if (args.batch.num_sequences == 0) return;
  dispatch_dtype(args.x.dtype, [&]<class T>() {
    if (args.out.dtype == DType::kFloat32) {
      launch_pool_to<T, float>(args, stream);
    } else {
      launch_pool_to<T, T>(args, stream);
    }
  });
}

void launch_cast(const CastArgs& args, cudaStream_t stream) {
  if (args.x.shape[0] == 0 || args.x.shape[1] == 0) return;
  dispatch_any_dtype(args.x.dtype, [&]<class From>() {
    dispatch_any_dtype(args.out.dtype, [&]<class To>() { launch_cast_to<From, To>(args, stream); });
  });
}

}  // namespace packhorse::cuda
