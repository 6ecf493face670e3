// A dense layer with weights in groups for few rows (up to 32). Its time is that of reading the
// packed weight once. As in gemm/skinny/kernel.cuh, each block has its share of the output's
// columns; one lane copies the weight through a ring of stages from the moment the block starts,
// which may be while the kernel before still runs, and another lane copies the rows.
//
// A warp has a strip of 16 output features and a part of the sum over k. A stage holds one or two
// blocks of 128 elements of k for it, packed so that a lane's 16 bytes are its part of the A
// operand of mma.sync for several steps, decoded to float16 in registers. The rows are the B
// operand. At the end the parts of a sum are added in order, in shared memory.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cute/arch/copy_sm90_tma.hpp>

#include "core/math.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/mma_sm80.cuh"
#include "cuda/common/pipeline_sm90.cuh"
#include "cuda/gemm/w4a16/operands.cuh"
#include "cuda/gemm/w4a16/output.cuh"

namespace packhorse::cuda {

struct GemmW4a16SkinnyArgs {
  /// The packed weight. A box has `depth` blocks of k of all strips of a tile. A block is one or
  /// two rows of the map.
  CUtensorMap weight;
  /// Boxes of 64 elements of k and all rows of a tile. With rows_at_once, one box has all of a
  /// stage, from a map whose last dimension counts boxes.
  CUtensorMap x;
  W4a16Output output;
  const int32_t* row_count;  // null: the number of rows is `rows`
  int32_t rows;
  W4a16Layout layout;
  W4a16Split split;
  W4a16SkinnyTile tile;
  bool rows_at_once;
};

inline constexpr int kMostW4a16Stages = 16;

/// kRows: W4a16SkinnyTile::rows. kGroupSteps: steps of 16 elements of k that share scales, 1, 2 or
/// 4; groups may be larger.
template <int kRows, int kBits, bool kMinima, int kGroupSteps>
struct GemmW4a16Skinny {
  static constexpr int kRowTiles = kRows / 8;
  static constexpr int kBox = kRows * 128;  // bytes of a box of rows
  static constexpr int kSumRows = kRows < kW4a16SumRows ? kRows : kW4a16SumRows;
  static constexpr int kMostWarps = kRows <= 16 ? 16 : 8;  // warps that multiply
  static constexpr int kThreads = (kMostWarps + 2) * 32;

  const GemmW4a16SkinnyArgs& args;
  uint64_t* full;
  uint64_t* empty;
  unsigned char* ring;

  __device__ int splits() const { return args.split.splits; }
  __device__ int warps() const { return args.tile.strips * splits(); }
  __device__ int stage_bytes() const {
    return w4a16_stage_bytes(args.tile, splits(), args.layout.block_bytes);
  }
  __device__ int tiles() const { return ceil_div(args.layout.strips, args.tile.strips); }
  /// Returns the number of blocks that a part of the sum has in its stage `i`: 0 past the end of a
  /// shorter part.
  __device__ int blocks_of(int part, int i) const {
    const int of_part = min(args.split.blocks, args.layout.blocks - part * args.split.blocks);
    return max(0, min(args.tile.depth, of_part - i * args.tile.depth));
  }
  /// Returns the first block of k in stage `i` of a part.
  __device__ int block_at(int part, int i) const {
    return part * args.split.blocks + i * args.tile.depth;
  }
  __device__ int rows() const {
    return args.row_count == nullptr ? args.rows : min(args.rows, *args.row_count);
  }

  /// Goes through the stages of all tiles of this block: visit(index, stage, phase, tile, number of
  /// the stage in the sum).
  template <class Visit>
  __device__ void for_stages(Visit visit) const {
    int index = 0;
    int stage = 0;
    uint32_t phase = 0;
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles();
         tile += static_cast<int>(gridDim.x)) {
      for (int i = 0; i < args.tile.rounds; ++i) {
        visit(index++, stage, phase, tile, i);
        if (++stage == args.tile.stages) {
          stage = 0;
          phase ^= 1;
        }
      }
    }
  }

  /// Copies the weight, by a lane of one warp: one copy for each part of the sum, since issuing a
  /// copy takes about a hundred cycles whatever its size. Blocks past the end of a part are copied
  /// and not used; past the end of the weight they are zeros. The weight does not depend on the
  /// kernel before, so the lane waits for that kernel only when the stages are full.
  __device__ void bring_weight() const {
    const int part_bytes = w4a16_part_bytes(args.tile, args.layout.block_bytes);
    const int copied = args.tile.strips * args.tile.depth * args.layout.block_bytes;
    unsigned char* const to = ring + w4a16_rows_bytes(args.tile, splits());
    const int bytes = stage_bytes();
    constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
    bool waited = false;
    const auto wait = [&] {
      wait_for_previous_kernel();
      let_next_kernel_start();
      waited = true;
    };
    for_stages([&](int index, int stage, uint32_t phase, int tile, int i) {
      if (index >= args.tile.stages) {
        if (!waited) wait();
        sm90::Barrier::wait(&empty[stage], phase ^ 1);
      }
      sm90::TxBarrier::arrive_and_expect_tx(&full[stage], splits() * copied);
      for (int part = 0; part < splits(); ++part) {
        cute::SM90_TMA_LOAD_4D::copy(&args.weight, &full[stage], kHint,
                                     to + stage * bytes + part * part_bytes, 0, 0,
                                     block_at(part, i), tile * args.tile.strips);
      }
    });
    if (!waited) wait();
  }

  /// Copies the rows, by a lane of another warp.
  __device__ void bring_rows() const {
    wait_for_previous_kernel();
    const int bytes = stage_bytes();
    constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);
    for_stages([&](int index, int stage, uint32_t phase, int, int i) {
      if (index >= args.tile.stages) sm90::Barrier::wait(&empty[stage], phase ^ 1);
      const int boxes = 2 * args.tile.depth;
      sm90::TxBarrier::arrive_and_expect_tx(&full[stage], splits() * boxes * kBox);
      for (int part = 0; part < splits(); ++part) {
        unsigned char* const to = ring + stage * bytes + part * boxes * kBox;
        const int box = block_at(part, i) * 2;
        if (args.rows_at_once) {
          cute::SM90_TMA_LOAD_3D::copy(&args.x, &full[stage], kHint, to, 0, 0, box);
          continue;
        }
        for (int b = 0; b < boxes; ++b) {
          cute::SM90_TMA_LOAD_2D::copy(&args.x, &full[stage], kHint, to + b * kBox, (box + b) * 64,
                                       0);
        }
      }
    });
  }

  /// acc += the products of one block of k. `rows`, `weight`: their addresses in the stage.
  __device__ void multiply(float (&acc)[kRowTiles][4], const unsigned char* rows,
                           const unsigned char* weight) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    W4a16Operands<kBits, kMinima, kGroupSteps> operands(weight, args.layout);
    // One ldmatrix loads the rows of two steps.
#pragma unroll
    for (int pair = 0; pair < kW4a16Steps; pair += 2) {
      Fragment right[kRowTiles];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        const int chunk = (pair % 4 * 2 + lane / 8) ^ (lane % 8);
        right[t] = load_fragment(rows + pair / 4 * kBox + (t * 8 + lane % 8) * 128 + chunk * 16);
      }
#pragma unroll
      for (int step = pair; step < pair + 2; ++step) {
        Fragment left;
        operands.make(left.x, step);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          mma<__half>(acc[t], left, right[t].x[step % 2 * 2], right[t].x[step % 2 * 2 + 1]);
        }
      }
    }
  }

  /// Waits for all warps that multiply.
  __device__ void meet() const { asm volatile("bar.sync 1, %0;" ::"r"(warps() * 32) : "memory"); }

  /// Adds the parts of a tile's sums through shared memory and finishes the tile, kSumRows rows at
  /// a time.
  __device__ void finish(const float (&acc)[kRowTiles][4], int warp, int tile, int count) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    constexpr int kWarpSums = kSumRows * kW4a16SumPitch;
    auto* const sums = reinterpret_cast<float*>(ring + args.tile.stages * stage_bytes());
    const int first = tile * args.tile.strips * kW4a16Strip;
    const int parts = splits();
    const int pairs = args.tile.strips * (args.output.gated ? kW4a16Strip / 4 : kW4a16Strip / 2);
#pragma unroll
    for (int chunk = 0; chunk < kRows / kSumRows; ++chunk) {
      if (chunk * kSumRows >= count) break;
#pragma unroll
      for (int t = 0; t < kSumRows / 8; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = t * 8 + lane % 4 * 2 + i % 2;
          sums[warp * kWarpSums + row * kW4a16SumPitch + lane / 4 + i / 2 * 8] =
              acc[chunk * (kSumRows / 8) + t][i];
        }
      }
      meet();
      const int rows = min(kSumRows, count - chunk * kSumRows);
      with_activation(args.output.activation, [&](auto function) {
        for (int at = static_cast<int>(threadIdx.x); at < rows * pairs; at += warps() * 32) {
          const int row = at / pairs;
          const int feature = w4a16_feature_of(args.output, at - row * pairs);
          if (first + feature >= args.output.n) continue;
          const auto sum_of = [&](int of) {
            const int in_tile = of - first;
            const float* from = sums + in_tile / kW4a16Strip * parts * kWarpSums +
                                row * kW4a16SumPitch + in_tile % kW4a16Strip;
            float2 sum = *reinterpret_cast<const float2*>(from);
            for (int part = 1; part < parts; ++part) {
              const float2 more = *reinterpret_cast<const float2*>(from + part * kWarpSums);
              sum = {sum.x + more.x, sum.y + more.y};
            }
            return sum;
          };
          finish_groups(args.output, chunk * kSumRows + row, first + feature, function, sum_of);
        }
      });
      meet();
    }
  }

  /// Multiplies part `warp` % splits of strip `warp` / splits, by one warp.
  __device__ void consume(int warp) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int part = warp % splits();
    const int strip = warp / splits();
    const int bytes = stage_bytes();
    const int depth = args.tile.depth;
    const int block_bytes = args.layout.block_bytes;
    const unsigned char* const rows_at = ring + part * depth * 2 * kBox;
    const unsigned char* const weight_at = ring + w4a16_rows_bytes(args.tile, splits()) +
                                           part * w4a16_part_bytes(args.tile, block_bytes) +
                                           strip * depth * block_bytes;
    const int count = rows();
    wait_for_previous_kernel();
    int stage = 0;
    uint32_t phase = 0;
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles();
         tile += static_cast<int>(gridDim.x)) {
      const bool has_strip = tile * args.tile.strips + strip < args.layout.strips;
      float acc[kRowTiles][4] = {};
      for (int i = 0; i < args.tile.rounds; ++i) {
        sm90::Barrier::wait(&full[stage], phase);
        const unsigned char* rows = rows_at + stage * bytes;
        const unsigned char* weight = weight_at + stage * bytes;
        for (int left = has_strip ? blocks_of(part, i) : 0; left > 0; --left) {
          multiply(acc, rows, weight);
          rows += 2 * kBox;
          weight += block_bytes;
        }
        __syncwarp();
        if (lane == 0) sm90::Barrier::arrive(&empty[stage]);
        if (++stage == args.tile.stages) {
          stage = 0;
          phase ^= 1;
        }
      }
      finish(acc, warp, tile, count);
    }
  }
};

/// The kernel. Its warps: one for each strip and part of a tile, one that copies the weight, and
/// one that copies the rows.
template <int kRows, int kBits, bool kMinima, int kGroupSteps>
__global__ void __launch_bounds__(GemmW4a16Skinny<kRows, kBits, kMinima, kGroupSteps>::kThreads, 1)
    gemm_w4a16_skinny_kernel(const __grid_constant__ GemmW4a16SkinnyArgs args) {
  extern __shared__ __align__(1024) unsigned char w4a16_ring[];
  __shared__ uint64_t barriers[2 * kMostW4a16Stages];
  const GemmW4a16Skinny<kRows, kBits, kMinima, kGroupSteps> work{
      args, barriers, barriers + kMostW4a16Stages, w4a16_ring};
  const int consumers = work.warps();
  if (threadIdx.x == 0) {
    for (int i = 0; i < args.tile.stages; ++i) {
      sm90::TxBarrier::init(&work.full[i], 2);  // for the weight and for the rows
      sm90::Barrier::init(&work.empty[i], consumers);
    }
    cutlass::arch::fence_barrier_init();
    cute::prefetch_tma_descriptor(&args.weight);
    cute::prefetch_tma_descriptor(&args.x);
  }
  __syncthreads();
  const int warp = sm90::uniform(static_cast<int>(threadIdx.x) / 32);
  if (warp < consumers) return work.consume(warp);
  if (!cute::elect_one_sync()) return;
  if (warp == consumers) return work.bring_weight();
  work.bring_rows();
}

}  // namespace packhorse::cuda
