// Kernel that puts the columns of rows into another order. A thread has eight columns of kRows
// rows: it reads the columns' sources once, gathers the elements of each row one by one, mostly
// from the L1 cache, and writes eight at once.
#include "cuda/common/launch.cuh"
#include "cuda/common/vector.cuh"
#include "cuda/rowwise/rowwise.h"

namespace packhorse::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = 4;  // rows of a thread

__global__ void __launch_bounds__(kThreads)
    order_columns_kernel(const __grid_constant__ TensorView x, const int32_t* order,
                         const __grid_constant__ TensorView out, const int32_t* row_count) {
  const int64_t column = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kVectorSize;
  const bool there = column < out.shape[1];
  int4 from[2] = {};
  if (there) {  // `order` belongs to the weights, which no kernel writes
    from[0] = reinterpret_cast<const int4*>(order + column)[0];
    from[1] = reinterpret_cast<const int4*>(order + column)[1];
  }
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (!there) return;
  const int64_t count = row_count == nullptr ? out.shape[0] : int64_t{*row_count};
  const int64_t first = int64_t{blockIdx.x} * kRows;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = first + r;
    if (row >= count || row >= out.shape[0]) return;
    const uint16_t* own = static_cast<const uint16_t*>(x.data) + row * x.row_stride;
    const auto pair = [&](int low, int high) { return own[low] | uint32_t{own[high]} << 16; };
    uint4 bits;
    bits.x = pair(from[0].x, from[0].y);
    bits.y = pair(from[0].z, from[0].w);
    bits.z = pair(from[1].x, from[1].y);
    bits.w = pair(from[1].z, from[1].w);
    uint16_t* to = static_cast<uint16_t*>(out.data) + row * out.row_stride + column;
    *reinterpret_cast<uint4*>(to) = bits;
  }
}

}  // namespace

void launch_order_columns(const TensorView& x, const int32_t* order, const TensorView& out,
                          const int32_t* row_count, const KernelStream& stream) {
  if (out.size() == 0) return;
  constexpr int64_t kColumns = int64_t{kThreads} * kVectorSize;
  const dim3 blocks(block_count(out.rows(), kRows), block_count(out.columns(), kColumns));
  launch_kernel(order_columns_kernel, blocks, kThreads, 0, stream, x, order, out, row_count);
}

}  // namespace packhorse::cuda
