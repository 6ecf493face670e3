// Kernels of adapters. A block has kRows rows. These mostly have one adapter, since rows of one
// sequence lie side by side, and each weight is then read once for all of them. A block goes
// through the adapters of its rows one after the other. No sum depends on the other rows of a
// block.
//
// lora_shrink_kernel: a warp computes one rank of A x for the rows of its block; its lanes take
// every 32nd vector of the columns, and are summed at the end. lora_expand_kernel: a thread
// computes eight columns of B (A x) for the rows of its block, rank by rank.
#include "cuda/common/launch.cuh"
#include "cuda/common/reduce.cuh"
#include "cuda/common/rotation.cuh"
#include "cuda/common/vector.cuh"
#include "cuda/rowwise/rowwise.h"

namespace packhorse::cuda {
namespace {

constexpr int kRows = 8;
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
static_assert(kPartColumns == kVectorSize);

/// Adapters of the rows of a block, the same in all its threads.
struct BlockRows {
  int64_t first;
  int slot[kRows];  // -1: the row does not exist, or its adapter has nothing to add
  int rank[kRows];

  __device__ explicit BlockRows(const LoraArgs& args) : first(int64_t{blockIdx.x} * kRows) {
    const int64_t rows = args.row_count == nullptr ? args.x.shape[0] : *args.row_count;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      slot[i] = first + i < rows ? args.slots[first + i] : -1;
      rank[i] = slot[i] < 0 ? 0 : args.layer.ranks[slot[i]];
      if (rank[i] == 0) slot[i] = -1;
    }
  }

  /// Calls body(slot, rank) once for each adapter of the rows.
  template <class Body>
  __device__ void for_each_adapter(Body&& body) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      bool seen = slot[i] < 0;
#pragma unroll
      for (int j = 0; j < i; ++j) seen = seen || slot[j] == slot[i];
      if (!seen) body(slot[i], rank[i]);
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    lora_shrink_kernel(const __grid_constant__ LoraArgs args) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const BlockRows block(args);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int number = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int max_rank = args.layer.max_rank;
  const int num_parts = args.layer.num_parts;
  const int part = number / max_rank;
  const int r = number % max_rank;
  if (part >= num_parts) return;
  const int64_t inner_stride = int64_t{num_parts} * max_rank;
  const int64_t in_features = args.x.shape[1];
  const int64_t x_stride = args.x.row_stride;
  const T* x = static_cast<const T*>(args.x.data) + block.first * x_stride;
  block.for_each_adapter([&](int slot, int rank) {
    if (r >= rank) return;
    const T* a = static_cast<const T*>(args.layer.a.data) +
                 ((int64_t{slot} * num_parts + part) * max_rank + r) * in_features;
    float sums[kRows] = {};
    for (int64_t c = lane * kVectorSize; c < in_features; c += 32 * kVectorSize) {
      float weights[kVectorSize];
      load_vector(weights, a + c);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (block.slot[i] != slot) continue;
        float values[kVectorSize];
        load_vector(values, x + i * x_stride + c);
#pragma unroll
        for (int k = 0; k < kVectorSize; ++k) sums[i] = fmaf(values[k], weights[k], sums[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (block.slot[i] != slot) continue;
      const float sum = warp_sum(sums[i]);
      if (lane == 0) args.workspace[(block.first + i) * inner_stride + number] = sum;
    }
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    lora_expand_kernel(const __grid_constant__ LoraArgs args,
                       const __grid_constant__ RopeArgs heads) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const BlockRows block(args);
  const int64_t column =
      (int64_t{blockIdx.y} * kThreads + static_cast<int>(threadIdx.x)) * kVectorSize;
  const LoraLayer& layer = args.layer;
  const int64_t out_features = args.out.shape[1];
  if (column >= out_features) return;
  const int part = layer.parts == nullptr ? 0 : layer.parts[column / kVectorSize];
  const int64_t inner_stride = int64_t{layer.num_parts} * layer.max_rank;
  const float* inner = args.workspace + block.first * inner_stride + int64_t{part} * layer.max_rank;
  float sums[kRows][kVectorSize] = {};
  block.for_each_adapter([&](int slot, int rank) {
    const T* b = static_cast<const T*>(layer.b.data) +
                 int64_t{slot} * layer.max_rank * out_features + column;
    for (int r = 0; r < rank; ++r, b += out_features) {
      float weights[kVectorSize];
      load_vector(weights, b);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (block.slot[i] != slot) continue;
        const float value = inner[i * inner_stride + r];
#pragma unroll
        for (int k = 0; k < kVectorSize; ++k) sums[i][k] = fmaf(value, weights[k], sums[i][k]);
      }
    }
  });
  const int in_head = heads.head_dim == 0 ? 0 : static_cast<int>(column % heads.head_dim);
  const auto* positions = static_cast<const float*>(heads.rotation.data);
  const bool rotates =
      positions != nullptr && column < (heads.num_heads + heads.num_kv_heads) * heads.head_dim;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (block.slot[i] < 0) continue;
    if (rotates) {
      const float position = positions[(block.first + i) * heads.rotation.row_stride];
#pragma unroll
      for (int k = 0; k < kVectorSize; k += 2) {
        if (in_head + k >= heads.dims) break;
        rotate(sums[i][k], sums[i][k + 1], cos_sin(position, heads.frequencies[(in_head + k) / 2]));
      }
    }
    T* out = static_cast<T*>(args.out.data) + (block.first + i) * args.out.row_stride + column;
    add_vector(sums[i], out);
    store_vector(out, sums[i]);
  }
}

}  // namespace

void launch_add_lora(const LoraArgs& args, const RopeArgs& heads, const KernelStream& stream) {
  const unsigned blocks = block_count(args.x.rows(), kRows);
  const dim3 shrinks(blocks, block_count(args.layer.workspace_columns(), kWarps));
  const dim3 expands(blocks, block_count(args.out.columns(), int64_t{kThreads} * kVectorSize));
  dispatch_dtype(args.x.dtype, [&]<class T>() {
    launch_kernel(lora_shrink_kernel<T>, shrinks, kThreads, 0, stream, args);
    launch_kernel(lora_expand_kernel<T>, expands, kThreads, 0, stream, args, heads);
  });
}

}  // namespace packhorse::cuda
