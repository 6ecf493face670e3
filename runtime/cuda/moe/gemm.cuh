// A product over the rows of all experts, each with its own weight: the schedule goes over the
// tiles of expert after expert, of which the device alone knows how many there are. cp.async brings
// tiles of both operands through stages of shared memory, and warps multiply them by mma.m16n8k16,
// in the order of sums of every dense layer.
#pragma once

#include "core/math.h"
#include "cuda/common/activations.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/mma_sm80.cuh"
#include "cuda/moe/moe.h"

namespace packhorse::cuda {

struct ExpertGemmArgs {
  const void* weights[kMostCudaExperts];  // [n, k] each
  const float* biases[kMostCudaExperts];  // [n] or null
  const int32_t* begins;                  // [num_experts + 1] of the rows of each expert in `order`
  const int32_t* order;                   // [rows]
  const float* scales;                    // [rows]
  const void* a;
  int64_t lda;
  void* out;
  int64_t ldo;
  int32_t num_experts, n, k;
  Activation activation;
};

/// kUp: rows of `a` are gathered, blocks of kGateBlock columns of the product alternate between a
/// gate and what it gates, and rows of `out` lie in the order of experts. Otherwise rows of `a` do,
/// and those of `out`, each times its scale, go to their own places.
template <class T, int kRows, bool kUp>
struct ExpertGemm {
  static constexpr int kColumns = 128;
  static constexpr int kDepth = 32;
  static constexpr int kStages = 4;
  static constexpr int kWarpRows = kRows >= 128 ? 64 : 32;
  static constexpr int kWarpColumns = 32;
  static constexpr int kWarpsAcross = kColumns / kWarpColumns;
  static constexpr int kThreads = kRows / kWarpRows * kWarpsAcross * 32;
  static constexpr int kTilesDown = kWarpRows / 16;
  static constexpr int kLoadsA = kRows * (kDepth / kVectorSize) / kThreads;
  static constexpr int kLoadsB = kColumns * (kDepth / kVectorSize) / kThreads;
  struct Shared {
    T a[kStages][kRows * kPitch<kDepth>];
    T b[kStages][kColumns * kPitch<kDepth>];
  };

  const ExpertGemmArgs& args;
  Shared& shared;
  const int warp = static_cast<int>(threadIdx.x) / 32;

  /// A tile of the output.
  struct Tile {
    int expert;
    int first;   // first of its rows in `order`
    int rows;    // rows that exist
    int column;  // first column
  };

  __device__ static int vector_row(int i) {
    return (i * kThreads + static_cast<int>(threadIdx.x)) / (kDepth / kVectorSize);
  }
  __device__ static int vector_column() {
    return static_cast<int>(threadIdx.x) % (kDepth / kVectorSize) * kVectorSize;
  }

  __device__ void multiply(float (&acc)[kTilesDown][4][4], const Tile& tile) const {
    const T* a_rows[kLoadsA];
    const T* b_rows[kLoadsB];
#pragma unroll
    for (int i = 0; i < kLoadsA; ++i) {
      const int row = vector_row(i);
      const int place = tile.first + min(row, tile.rows - 1);
      const int64_t from = kUp ? args.order[place] : place;
      a_rows[i] = row < tile.rows ? static_cast<const T*>(args.a) + from * args.lda : nullptr;
    }
#pragma unroll
    for (int i = 0; i < kLoadsB; ++i) {
      const int row = tile.column + vector_row(i);
      b_rows[i] = row < args.n ? static_cast<const T*>(args.weights[tile.expert]) +
                                     static_cast<int64_t>(row) * args.k
                               : nullptr;
    }
    const int steps = ceil_div(args.k, kDepth);
    const auto bring = [&](int step) {
      const int stage = step % kStages;
      const int column = step * kDepth + vector_column();
      const auto copy = [&](T* to, const T* from) {
        const bool inside = from != nullptr && column < args.k;
        copy_vector_async(to, inside ? from + column : static_cast<const T*>(args.a), inside);
      };
      if (step < steps) {
#pragma unroll
        for (int i = 0; i < kLoadsA; ++i) {
          copy(shared.a[stage] + vector_row(i) * kPitch<kDepth> + vector_column(), a_rows[i]);
        }
#pragma unroll
        for (int i = 0; i < kLoadsB; ++i) {
          copy(shared.b[stage] + vector_row(i) * kPitch<kDepth> + vector_column(), b_rows[i]);
        }
      }
      cute::cp_async_fence();
    };
    __syncthreads();  // the tile before has been read
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) bring(s);
    const int row = warp / kWarpsAcross * kWarpRows;
    const int column = warp % kWarpsAcross * kWarpColumns;
    for (int step = 0; step < steps; ++step) {
      cute::cp_async_wait<kStages - 2>();
      __syncthreads();
      bring(step + kStages - 1);
      const T* const a = shared.a[step % kStages];
      const T* const b = shared.b[step % kStages];
#pragma unroll
      for (int k = 0; k < kDepth; k += 16) {
        Fragment right[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) right[i] = load_b<kDepth>(b, column + i * 16, k);
#pragma unroll
        for (int m = 0; m < kTilesDown; ++m) {
          const Fragment left = load_a<kDepth>(a, row + m * 16, k);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            mma<T>(acc[m][2 * i], left, right[i].x[0], right[i].x[1]);
            mma<T>(acc[m][2 * i + 1], left, right[i].x[2], right[i].x[3]);
          }
        }
      }
    }
    cute::cp_async_wait<0>();
  }

  /// Adds the bias to two neighbouring columns.
  __device__ float2 biased(const float* bias, float a, float b, int column) const {
    if (bias == nullptr) return {a, b};
    return {a + bias[column], b + bias[column + 1]};
  }

  __device__ void store(const float (&acc)[kTilesDown][4][4], const Tile& tile) const {
    const AccumulatorPlace place;
    const int in_tile = warp / kWarpsAcross * kWarpRows + place.row;
    const int column = tile.column + warp % kWarpsAcross * kWarpColumns;
    const float* const bias = args.biases[tile.expert];
    if (column >= args.n) return;
    with_activation(args.activation, [&](auto function) {
#pragma unroll
      for (int m = 0; m < kTilesDown; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = in_tile + m * 16 + h * 8;
          if (row >= tile.rows) continue;
          const int source = kUp ? tile.first + row : args.order[tile.first + row];
          T* const out = static_cast<T*>(args.out) + source * args.ldo;
          [[maybe_unused]] const float scale = kUp ? 1.0f : args.scales[source];
#pragma unroll
          for (int b = 0; b < (kUp ? 2 : 4); ++b) {
            const int at = column + b * 8 + place.column;
            if (!kUp && at >= args.n) continue;
            float2 value = biased(bias, acc[m][b][2 * h], acc[m][b][2 * h + 1], at);
            if constexpr (kUp) {
              const float2 gated =
                  biased(bias, acc[m][b + 2][2 * h], acc[m][b + 2][2 * h + 1], at + kGateBlock);
              value = {function(value.x) * gated.x, function(value.y) * gated.y};
            } else {
              value = {value.x * scale, value.y * scale};
            }
            const int to = kUp ? column / 2 + b * 8 + place.column : at;
            *reinterpret_cast<typename Element<T>::Pair*>(out + to) =
                Element<T>::pair(value.x, value.y);
          }
        }
      }
    });
  }

  __device__ void run() const {
    const int across = ceil_div(args.n, kColumns);
    int expert = 0;
    int before = 0;  // tiles of the experts before
    for (int index = static_cast<int>(blockIdx.x);; index += static_cast<int>(gridDim.x)) {
      int down = 0;
      for (; expert < args.num_experts; ++expert) {
        const int rows = args.begins[expert + 1] - args.begins[expert];
        down = ceil_div(rows, kRows);
        if (index < before + down * across) break;
        before += down * across;
      }
      if (expert == args.num_experts) return;
      Tile tile;
      tile.expert = expert;
      const int in_expert = index - before;
      tile.first = args.begins[expert] + in_expert % down * kRows;
      tile.rows = min(kRows, args.begins[expert + 1] - tile.first);
      tile.column = in_expert / down * kColumns;
      float acc[kTilesDown][4][4] = {};
      multiply(acc, tile);
      store(acc, tile);
    }
  }
};

template <class T, int kRows, bool kUp>
__global__ void __launch_bounds__(ExpertGemm<T, kRows, kUp>::kThreads)
    expert_gemm_kernel(const __grid_constant__ ExpertGemmArgs args) {
  using Gemm = ExpertGemm<T, kRows, kUp>;
  extern __shared__ uint4 expert_shared[];
  wait_for_previous_kernel();
  let_next_kernel_start();
  Gemm{args, *reinterpret_cast<typename Gemm::Shared*>(expert_shared)}.run();
}

}  // namespace packhorse::cuda
