// The kernels of a mixture that choose experts and put rows in their order, and scaled residuals.
#pragma once

#include <cfloat>
#include <climits>

#include "cuda/common/launch.cuh"
#include "cuda/common/reduce.cuh"
#include "cuda/common/vector.cuh"
#include "ops/args/moe.h"

namespace packhorse::cuda {

/// The choice of every row, and the rows in the order of their classes.
struct MoeRows {
  int32_t* chosen;  // [rows] class of each row
  float* scales;    // [rows] its probability
  int32_t* order;   // [rows] the rows of class 0, then those of class 1, and so on
  int32_t* begins;  // [classes + 1] where those of a class begin
};

__device__ inline int64_t exact_rows(const TensorView& x, const int32_t* row_count) {
  return row_count == nullptr ? x.shape[0] : *row_count;
}

/// A warp chooses the class of a row: the largest p + balance, the lowest of equal ones. Where that
/// is no expert, it writes zeros to `out`.
template <class T>
__global__ void __launch_bounds__(256)
    choose_experts_kernel(const __grid_constant__ MoeArgs args, MoeRows rows, int num_experts) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t row = int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
  if (row >= exact_rows(args.x, args.row_count)) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const T* const logits = static_cast<const T*>(args.logits.data) + row * args.logits.row_stride;
  float largest = -FLT_MAX;
  for (int c = lane; c < args.num_classes; c += 32) largest = fmaxf(largest, to_float(logits[c]));
  for (int mask = 16; mask > 0; mask /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, mask));
  }
  float sum = 0;
  for (int c = lane; c < args.num_classes; c += 32) sum += expf(to_float(logits[c]) - largest);
  sum = warp_sum(sum);
  float best = -INFINITY;
  float scale = NAN;
  int chosen = INT_MAX;
  for (int c = lane; c < args.num_classes; c += 32) {
    const float p = expf(to_float(logits[c]) - largest) / sum;
    const float value = p + args.balance[c];
    if (value > best) {
      best = value;
      scale = p;
      chosen = c;
    }
  }
  for (int mask = 16; mask > 0; mask /= 2) {
    const float other = __shfl_xor_sync(kFullWarp, best, mask);
    const float other_scale = __shfl_xor_sync(kFullWarp, scale, mask);
    const int other_class = __shfl_xor_sync(kFullWarp, chosen, mask);
    if (other > best || (other == best && other_class < chosen)) {
      best = other;
      scale = other_scale;
      chosen = other_class;
    }
  }
  if (chosen == INT_MAX) chosen = 0;  // numbers that are none
  if (lane == 0) {
    rows.chosen[row] = chosen;
    rows.scales[row] = scale;
  }
  if (chosen < num_experts) return;
  T* const out = static_cast<T*>(args.out.data) + row * args.out.row_stride;
  const int columns = static_cast<int>(args.out.shape[1]);
  for (int c = lane * kVectorSize; c < columns; c += 32 * kVectorSize) {
    *reinterpret_cast<uint4*>(out + c) = make_uint4(0, 0, 0, 0);
  }
}

/// One block counts the rows of each class and gives every row its place among them. The order
/// within a class is any: no row's bits depend on its place.
__global__ void __launch_bounds__(1024)
    sort_rows_kernel(const __grid_constant__ MoeArgs args, MoeRows rows) {
  extern __shared__ int32_t next[];  // [classes]
  wait_for_previous_kernel();
  let_next_kernel_start();
  const auto count = static_cast<int>(exact_rows(args.x, args.row_count));
  const int classes = args.num_classes;
  for (int c = threadIdx.x; c < classes; c += 1024) next[c] = 0;
  __syncthreads();
  for (int row = threadIdx.x; row < count; row += 1024) atomicAdd(next + rows.chosen[row], 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    int begin = 0;
    for (int c = 0; c < classes; ++c) {
      const int size = next[c];
      rows.begins[c] = next[c] = begin;
      begin += size;
    }
    rows.begins[classes] = begin;
  }
  __syncthreads();
  for (int row = threadIdx.x; row < count; row += 1024) {
    rows.order[atomicAdd(next + rows.chosen[row], 1)] = row;
  }
}

/// Eight columns, shifted and scaled.
__device__ inline void shift_and_scale(float (&value)[kVectorSize], const float* shift,
                                       const float* scale, int column) {
#pragma unroll
  for (int i = 0; i < kVectorSize; ++i) {
    if (shift != nullptr) value[i] += shift[column + i];
    if (scale != nullptr) value[i] *= scale[column + i];
  }
}

/// A thread has eight columns of a row.
template <class T>
__global__ void __launch_bounds__(256)
    add_scaled_kernel(const __grid_constant__ AddScaledArgs args) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t vectors = args.x.shape[1] / kVectorSize;
  const int64_t index = int64_t{blockIdx.x} * 256 + threadIdx.x;
  const int64_t row = index / vectors;
  if (row >= exact_rows(args.x, args.row_count)) return;
  const int column = static_cast<int>(index - row * vectors) * kVectorSize;
  float value[kVectorSize];
  load_vector(value, static_cast<const T*>(args.x.data) + row * args.x.row_stride + column);
  shift_and_scale(value, args.x_shift, args.x_scale, column);
  if (args.residual.data != nullptr) {
    float residual[kVectorSize];
    load_vector(residual, static_cast<const T*>(args.residual.data) +
                              row * args.residual.row_stride + column);
    shift_and_scale(residual, args.residual_shift, args.residual_scale, column);
#pragma unroll
    for (int i = 0; i < kVectorSize; ++i) value[i] += residual[i];
  }
  store_vector(static_cast<T*>(args.out.data) + row * args.out.row_stride + column, value);
}

}  // namespace packhorse::cuda
