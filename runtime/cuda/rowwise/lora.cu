// Kernels of adapters. A block has kRows rows, which mostly are of one adapter, so that it reads
// each weight once for all of them: rows of one sequence lie side by side. Rows of a block that are
// of another adapter take a turn of their own. No sum depends on the other rows of a block.
//
// lora_shrink_kernel: a warp computes one rank of A x for the rows of its block; its lanes take
// every 32nd vector of the columns, and are summed at the end. lora_expand_kernel: a thread
// computes eight columns of B times that for the rows of its block, rank by rank.
#include "cuda/common/epilogue.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/reduce.cuh"
#include "cuda/common/rotation.cuh"
#include "cuda/common/vector.cuh"
#include "cuda/rowwise/lora.h"

namespace packhorse::cuda {
namespace {

constexpr int kRows = 8;
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
static_assert(kPartColumns == kVectorSize);
static_assert(kGateBlock % kVectorSize == 0);

struct LoraParams {
  const void* x = nullptr;
  const void* a = nullptr;
  const void* b = nullptr;
  void* out = nullptr;
  float* inner = nullptr;  // [rows, num_parts * max_rank]
  const int32_t* slots = nullptr;
  const int32_t* ranks = nullptr;
  const int32_t* parts = nullptr;
  const int32_t* row_count = nullptr;
  int64_t x_stride = 0, out_stride = 0;
  int64_t rows = 0, in_features = 0, out_features = 0;
  int32_t num_parts = 1, max_rank = 0;
  LoraRotation rotation;
};

/// The adapters of the rows of a block: all threads have the same.
struct BlockRows {
  int64_t first;
  int slot[kRows];  // -1: the row does not exist, or its adapter has nothing to add
  int rank[kRows];

  __device__ BlockRows(const int32_t* slots, const int32_t* ranks, int64_t block, int64_t rows)
      : first(block * kRows) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      slot[i] = first + i < rows ? slots[first + i] : -1;
      rank[i] = slot[i] < 0 ? 0 : ranks[slot[i]];
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

__device__ inline int64_t exact_rows(int64_t bound, const int32_t* row_count) {
  return row_count == nullptr ? bound : *row_count;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    lora_shrink_kernel(const __grid_constant__ LoraParams params) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const BlockRows block(params.slots, params.ranks, blockIdx.x,
                        exact_rows(params.rows, params.row_count));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int number = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int part = number / params.max_rank;
  const int r = number % params.max_rank;
  if (part >= params.num_parts) return;
  const int64_t inner_stride = int64_t{params.num_parts} * params.max_rank;
  const T* x = static_cast<const T*>(params.x) + block.first * params.x_stride;
  block.for_each_adapter([&](int slot, int rank) {
    if (r >= rank) return;
    const T* a =
        static_cast<const T*>(params.a) +
        ((int64_t{slot} * params.num_parts + part) * params.max_rank + r) * params.in_features;
    float sums[kRows] = {};
    for (int64_t c = lane * kVectorSize; c < params.in_features; c += 32 * kVectorSize) {
      float weights[kVectorSize];
      load_vector(weights, a + c);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (block.slot[i] != slot) continue;
        float values[kVectorSize];
        load_vector(values, x + i * params.x_stride + c);
#pragma unroll
        for (int k = 0; k < kVectorSize; ++k) sums[i] = fmaf(values[k], weights[k], sums[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (block.slot[i] != slot) continue;
      const float sum = warp_sum(sums[i]);
      if (lane == 0) params.inner[(block.first + i) * inner_stride + number] = sum;
    }
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    lora_expand_kernel(const __grid_constant__ LoraParams params) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const BlockRows block(params.slots, params.ranks, blockIdx.x,
                        exact_rows(params.rows, params.row_count));
  const int64_t column =
      (int64_t{blockIdx.y} * kThreads + static_cast<int>(threadIdx.x)) * kVectorSize;
  if (column >= params.out_features) return;
  const int part = params.parts == nullptr ? 0 : params.parts[column / kVectorSize];
  const int64_t inner_stride = int64_t{params.num_parts} * params.max_rank;
  const float* inner = params.inner + block.first * inner_stride + int64_t{part} * params.max_rank;
  float sums[kRows][kVectorSize] = {};
  block.for_each_adapter([&](int slot, int rank) {
    const T* b = static_cast<const T*>(params.b) +
                 int64_t{slot} * params.max_rank * params.out_features + column;
    for (int r = 0; r < rank; ++r, b += params.out_features) {
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
  const LoraRotation& rotation = params.rotation;
  const int in_head = rotation.head_dim == 0 ? 0 : static_cast<int>(column % rotation.head_dim);
  const bool rotates = rotation.positions != nullptr && column < rotation.columns;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (block.slot[i] < 0) continue;
    if (rotates) {
      const float position = rotation.positions[(block.first + i) * rotation.stride];
#pragma unroll
      for (int k = 0; k < kVectorSize; k += 2) {
        if (in_head + k >= rotation.dims) break;
        rotate(sums[i][k], sums[i][k + 1],
               cos_sin(position, rotation.frequencies[(in_head + k) / 2]));
      }
    }
    T* out = static_cast<T*>(params.out) + (block.first + i) * params.out_stride + column;
    add_vector(sums[i], out);
    store_vector(out, sums[i]);
  }
}

struct ActivateParams {
  const void* x = nullptr;  // [rows, columns], with `gated` twice as many
  void* out = nullptr;      // [rows, columns]
  int64_t rows = 0, columns = 0;
  const int32_t* slots = nullptr;
  const int32_t* ranks = nullptr;
  const int32_t* row_count = nullptr;
  Activation activation = Activation::kNone;
  bool gated = false;
};

/// A thread computes eight columns of a row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    activate_kernel(const __grid_constant__ ActivateParams params) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t vectors = params.columns / kVectorSize;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = index / vectors;
  if (row >= exact_rows(params.rows, params.row_count)) return;
  const int slot = params.slots[row];
  if (slot < 0 || params.ranks[slot] == 0) return;
  const int64_t column = index % vectors * kVectorSize;
  float value[kVectorSize];
  if (params.gated) {
    const T* gate = static_cast<const T*>(params.x) + row * 2 * params.columns +
                    column / kGateBlock * 2 * kGateBlock + column % kGateBlock;
    float up[kVectorSize];
    load_vector(value, gate);
    load_vector(up, gate + kGateBlock);
    activate<kVectorSize>(value, params.activation);
#pragma unroll
    for (int i = 0; i < kVectorSize; ++i) value[i] *= up[i];
  } else {
    load_vector(value, static_cast<const T*>(params.x) + row * params.columns + column);
    activate<kVectorSize>(value, params.activation);
  }
  store_vector(static_cast<T*>(params.out) + row * params.columns + column, value);
}

unsigned blocks_for(int64_t count, int64_t size) {
  return static_cast<unsigned>((count + size - 1) / size);
}

}  // namespace

void launch_add_lora(const LoraArgs& args, const LoraRotation& rotation,
                     const KernelStream& stream) {
  LoraParams params;
  params.x = args.x.data;
  params.a = args.layer.a.data;
  params.b = args.layer.b.data;
  params.out = args.out.data;
  params.inner = args.workspace;
  params.slots = args.slots;
  params.ranks = args.layer.ranks;
  params.parts = args.layer.parts;
  params.row_count = args.row_count;
  params.x_stride = args.x.row_stride;
  params.out_stride = args.out.row_stride;
  params.rows = args.x.rows();
  params.in_features = args.x.columns();
  params.out_features = args.out.columns();
  params.num_parts = args.layer.num_parts;
  params.max_rank = args.layer.max_rank;
  params.rotation = rotation;
  const unsigned blocks = blocks_for(params.rows, kRows);
  const dim3 shrinks(blocks, blocks_for(args.layer.workspace_columns(), kWarps));
  const dim3 expands(blocks, blocks_for(params.out_features, int64_t{kThreads} * kVectorSize));
  dispatch_dtype(args.x.dtype, [&]<class T>() {
    launch_kernel(lora_shrink_kernel<T>, shrinks, kThreads, 0, stream, params);
    launch_kernel(lora_expand_kernel<T>, expands, kThreads, 0, stream, params);
  });
}

void launch_activate(const ActivateArgs& args, const KernelStream& stream) {
  ActivateParams params;
  params.x = args.x.data;
  params.out = args.out.data;
  params.rows = args.out.rows();
  params.columns = args.out.columns();
  params.slots = args.slots;
  params.ranks = args.ranks;
  params.row_count = args.row_count;
  params.activation = args.activation;
  params.gated = args.gated;
  const int64_t vectors = params.rows * params.columns / kVectorSize;
  if (vectors == 0) return;
  dispatch_dtype(args.x.dtype, [&]<class T>() {
    launch_kernel(activate_kernel<T>, blocks_for(vectors, kThreads), kThreads, 0, stream, params);
  });
}

}  // namespace packhorse::cuda
