// Kernels that rotate the heads of queries and keys (RoPE) and normalise them, in place.
// positions_kernel, or over grids cells_kernel, runs once per batch and writes each token's
// position, or two angles. rope_kernel runs in every layer and multiplies them by the frequencies
// (rotation.cuh). A few neighbouring lanes share a
// head, with eight columns each, so that a whole head stays in registers.
#include <bit>
#include <numbers>

#include "cuda/common/launch.cuh"
#include "cuda/common/rotation.cuh"
#include "cuda/common/token_position.cuh"
#include "cuda/common/vector.cuh"
#include "cuda/rowwise/rowwise.h"

namespace packhorse::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    positions_kernel(const __grid_constant__ RotationArgs args) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int token = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const TokenCounts counts(args.batch);
  if (token >= counts.tokens) return;
  const int position = args.position_ids != nullptr
                           ? args.position_ids[token]
                           : position_in_sequence(args.batch, counts.sequences, token);
  static_cast<float*>(args.out.data)[token * args.out.row_stride] = static_cast<float>(position);
}

// Returns 2 pi times the centre of a cell, where -1 and 1 are the ends of the grid. In float32, as
// models were trained.
__device__ float angle_of(int cell, int cells) {
  const float centre = (static_cast<float>(cell) + 0.5f) / static_cast<float>(cells);
  return 2.0f * std::numbers::pi_v<float> * (2.0f * centre - 1.0f);
}

__global__ void __launch_bounds__(kThreads)
    cells_kernel(const __grid_constant__ RotationArgs args) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int token = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const TokenCounts counts(args.batch);
  if (token >= counts.tokens) return;
  const int sequence = sequence_of(args.batch, counts.sequences, token);
  const int cell = token - args.batch.cu_seqlens[sequence] - static_cast<int>(args.prefix);
  float2 angles = {0, 0};  // rows before the cells are not rotated
  if (cell >= 0) {
    const int rows = args.grids[2 * sequence];
    const int columns = args.grids[2 * sequence + 1];
    angles = {angle_of(cell / columns, rows), angle_of(cell % columns, columns)};
  }
  float* out = static_cast<float*>(args.out.data) + token * args.out.row_stride;
  out[0] = angles.x;
  out[1] = angles.y;
}

/// A thread has eight columns, which are four pairs, of one head. `lanes` neighbouring lanes, a
/// power of two, share a head.
template <class T>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(const __grid_constant__ RopeArgs args, int lanes) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int heads = args.num_heads + args.num_kv_heads;
  const int64_t index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / lanes;
  const int64_t row = index / heads;
  const int h = static_cast<int>(index - row * heads);
  const int first = static_cast<int>(threadIdx.x) % lanes * kVectorSize;
  const bool exists = first < args.head_dim &&
                      row < (args.row_count == nullptr ? args.q.shape[0] : *args.row_count);
  const bool is_query = h < args.num_heads;
  const TensorView& rows = is_query ? args.q : args.k;
  const NormWeight& norm = is_query ? args.q_norm : args.k_norm;
  T* x = static_cast<T*>(rows.data) + row * rows.row_stride +
         (is_query ? h : h - args.num_heads) * args.head_dim + first;
  float value[kVectorSize] = {};
  if (exists) load_vector(value, x);
  if (norm.gamma != nullptr) {  // columns past model_dim are zeros
    float squares = 0;
#pragma unroll
    for (float v : value) squares += v * v;
    for (int step = 1; step < lanes; step *= 2) squares += __shfl_xor_sync(~0u, squares, step);
    const float scale = rsqrtf(squares / static_cast<float>(args.model_dim) + norm.eps);
#pragma unroll
    for (int i = 0; i < kVectorSize; ++i) {
      if (first + i < args.model_dim) value[i] *= scale * norm.gamma[first + i];
    }
  }
  if (!exists) return;
  if (args.rotation.data != nullptr) {
    const float* positions =
        static_cast<const float*>(args.rotation.data) + row * args.rotation.row_stride;
    // Over a grid the second half of the pairs has an angle of its own.
    const int halfway = args.grid ? args.dims / 2 : args.dims;
#pragma unroll
    for (int i = 0; i < kVectorSize; i += 2) {
      if (first + i >= args.dims) break;
      const float position = positions[first + i < halfway ? 0 : 1];
      rotate(value[i], value[i + 1], cos_sin(position, args.frequencies[(first + i) / 2]));
    }
  }
  store_vector(x, value);
}

}  // namespace

void launch_rotation(const RotationArgs& args, const KernelStream& stream) {
  launch_kernel(args.grids != nullptr ? cells_kernel : positions_kernel,
                block_count(args.out.rows(), kThreads), kThreads, 0, stream, args);
}

void launch_rope(const RopeArgs& args, const KernelStream& stream) {
  const int lanes =
      static_cast<int>(std::bit_ceil(static_cast<unsigned>(args.head_dim / kVectorSize)));
  const int64_t heads = args.q.rows() * (args.num_heads + args.num_kv_heads);
  dispatch_dtype(args.q.dtype, [&]<class T>() {
    launch_kernel(rope_kernel<T>, block_count(heads * lanes, kThreads), kThreads, 0, stream, args,
                  lanes);
  });
}

}  // namespace packhorse::cuda
