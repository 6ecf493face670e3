// A dense layer with weights in groups for many rows on Hopper. A producer warp copies tiles of
// both operands through a ring of stages, and two consumer warpgroups multiply them by wgmma; the
// grid is persistent.
//
// The weight is the A operand, which wgmma can take from registers: a warp decodes its strip of 16
// of the warpgroup's 64 output features to float16 while the tensor cores multiply the 64 elements
// of k before. The rows are the B operand, from shared memory. A tile's sums are therefore
// transposed, and pass through shared memory before they are stored. Each part of a sum starts from
// zero and is added to the parts before, as in w4a16/skinny_kernel.cuh.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>
#include <cutlass/numeric_types.h>

#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

#include "core/math.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/pipeline_sm90.cuh"
#include "cuda/gemm/w4a16/operands.cuh"
#include "cuda/gemm/w4a16/output.cuh"

namespace packhorse::cuda {

struct GemmW4a16ManyArgs {
  CUtensorMap weight;  // packed, in boxes of a block of each strip of a tile
  CUtensorMap x;       // boxes of 64 elements of k and the rows of a tile
  W4a16Output output;
  const int32_t* row_count;  // null: the number of rows is `rows`
  int32_t rows;
  W4a16Layout layout;
  W4a16Split split;
  int32_t stages;
};

/// Shared memory of the kernel for tiles of kRows rows: stages, each of two boxes of rows and the
/// blocks of kStrips strips, and sums before they are stored.
template <int kRows_>
struct W4a16ManyShape {
  static constexpr int kRows = kRows_;
  static constexpr int kStrips = 8;         // strips of a tile: four of each warpgroup
  static constexpr int kBox = kRows * 128;  // bytes of a box of rows
  static constexpr int kMostStages = 8;
  static constexpr int kSumRows = 32;                    // rows whose sums are stored at a time
  static constexpr int kSumPitch = 4 * kW4a16Strip + 4;  // numbers from one row to the next
  static constexpr int kSumBytes = 2 * kSumRows * kSumPitch * static_cast<int>(sizeof(float));
  static constexpr int kMostBytes = 225 * 1024;  // beside the barriers

  static constexpr int stage_bytes(int block_bytes) {
    return round_up(2 * kBox + kStrips * block_bytes, 1024);
  }
  static int stages(int block_bytes) {
    return std::min(kMostStages, (kMostBytes - kSumBytes) / stage_bytes(block_bytes));
  }
};

template <int kRows, int kBits, bool kMinima, int kGroupSteps>
struct GemmW4a16Many {
  using Shape = W4a16ManyShape<kRows>;
  using Element = cutlass::half_t;
  static constexpr int kStrips = Shape::kStrips;
  using Mma = decltype(cute::make_tiled_mma(
      cute::SM90::GMMA::rs_op_selector<Element, Element, float,
                                       cute::Shape<cute::_64, cute::Int<kRows>, cute::_64>,
                                       cute::SM90::GMMA::Major::K, cute::SM90::GMMA::Major::K>()));
  using BoxLayout = decltype(cute::tile_to_shape(cute::SM90::GMMA::Layout_K_SW128_Atom<Element>{},
                                                 cute::Shape<cute::Int<kRows>, cute::_64>{}));

  const GemmW4a16ManyArgs& args;
  uint64_t* full;
  uint64_t* empty;
  unsigned char* ring;

  __device__ int stage_bytes() const { return Shape::stage_bytes(args.layout.block_bytes); }
  __device__ int rows() const {
    return args.row_count == nullptr ? args.rows : min(args.rows, *args.row_count);
  }
  __device__ int tiles_across() const { return ceil_div(args.layout.strips, kStrips); }

  /// Number of tiles. Tiles of the same rows follow one another, so that the rows stay in the L2
  /// cache.
  __device__ int tiles(int rows) const { return ceil_div(rows, kRows) * tiles_across(); }

  /// Copies rows and weight, by one lane.
  __device__ void produce() const {
    constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    const int bytes = stage_bytes();
    const int copied = 2 * Shape::kBox + kStrips * args.layout.block_bytes;
    wait_for_previous_kernel();
    const int last = tiles(rows());
    int stage = 0;
    uint32_t phase = 1;
    for (int tile = static_cast<int>(blockIdx.x); tile < last;
         tile += static_cast<int>(gridDim.x)) {
      const int strip = tile % tiles_across() * kStrips;
      const int row = tile / tiles_across() * kRows;
      for (int block = 0; block < args.layout.blocks; ++block) {
        sm90::Barrier::wait(&empty[stage], phase);
        unsigned char* const to = ring + stage * bytes;
        sm90::TxBarrier::arrive_and_expect_tx(&full[stage], copied);
        for (int box = 0; box < 2; ++box) {
          cute::SM90_TMA_LOAD_2D::copy(&args.x, &full[stage], kHint, to + box * Shape::kBox,
                                       (block * 2 + box) * 64, row);
        }
        cute::SM90_TMA_LOAD_4D::copy(&args.weight, &full[stage], kHint, to + 2 * Shape::kBox, 0, 0,
                                     block, strip);
        if (++stage == args.stages) {
          stage = 0;
          phase ^= 1;
        }
      }
    }
    let_next_kernel_start();
  }

  /// Decodes the A operands of four steps, half kHalf of the packed block at `weight`.
  template <int kHalf>
  __device__ void unpack(uint32_t (&left)[4][4], const unsigned char* weight) const {
    using Operands = W4a16Operands<kBits, kMinima, kGroupSteps>;
    static_assert(4 % Operands::kChunkSteps == 0 && 4 % kGroupSteps == 0);
    Operands operands(weight, args.layout);
#pragma unroll
    for (int step = 0; step < 4; ++step) operands.make(left[step], kHalf * 4 + step);
  }

  /// Waits for the warps of this warpgroup.
  __device__ static void meet(int group) {
    asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
  }

  /// Writes the sums of kSumRows rows, from row chunk * kSumRows on, to shared memory. Registers
  /// cannot be indexed at run time, so there is code for every chunk.
  template <class Accumulators>
  __device__ static void hand_over(const Accumulators& acc, int chunk, float* sums) {
    constexpr int kSumRows = Shape::kSumRows;
    const int thread = static_cast<int>(threadIdx.x) % 128;
    const int lane = thread % 32;
#pragma unroll
    for (int c = 0; c < kRows / kSumRows; ++c) {
      if (c != chunk) continue;
#pragma unroll
      for (int i = 0; i < kSumRows / 2; ++i) {
        const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
        const int feature = thread / 32 * kW4a16Strip + lane / 4 + i / 2 % 2 * 8;
        sums[row * Shape::kSumPitch + feature] = acc(c * (kSumRows / 2) + i);
      }
    }
  }

  /// Finishes this warpgroup's part of a tile through shared memory, kSumRows rows at a time. A
  /// thread has eight columns of one row or two, whose residual is loaded while the rows before are
  /// finished.
  template <class Accumulators>
  __device__ void finish(const Accumulators& acc, int group, int strip, int first_row,
                         int count) const {
    constexpr int kSumRows = Shape::kSumRows;
    const int thread = static_cast<int>(threadIdx.x) % 128;
    auto* const sums = reinterpret_cast<float*>(ring + args.stages * stage_bytes()) +
                       group * kSumRows * Shape::kSumPitch;
    const bool gated = args.output.gated;
    const int shift = gated ? 2 : 3;  // 4 or 8 threads have a row
    const int in_row = thread & ((1 << shift) - 1);
    const int in_tile = w4a16_feature_of(args.output, in_row * 4);
    const W4a16Vector columns(args.output, strip * kW4a16Strip + in_tile);
    const int last = min(count, first_row + kRows);
    const auto row_of = [&](int i) { return (thread >> shift) + i * (kSumRows / 2); };
    const auto has = [&](int first, int i) {
      return columns.exists() && (i == 0 || !gated) && first + row_of(i) < last;
    };
    uint4 added[2];
    const auto ask = [&](int first) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        added[i] = has(first, i) ? columns.residual(first + row_of(i)) : uint4{};
      }
    };
    ask(first_row);
    with_activation(args.output.activation, [&](auto function) {
#pragma unroll 1
      for (int first = first_row; first < last; first += kSumRows) {
        hand_over(acc, (first - first_row) / kSumRows, sums);
        const uint4 now[2] = {added[0], added[1]};
        ask(first + kSumRows);
        meet(group);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (!has(first, i)) continue;
          columns.finish(first + row_of(i), sums + row_of(i) * Shape::kSumPitch + in_tile, now[i],
                         function);
        }
        meet(group);
      }
    });
  }

  /// Runs a consumer warpgroup.
  __device__ void consume() const {
    using namespace cute;
    const int group = sm90::uniform(static_cast<int>(threadIdx.x) / 128);
    const int warp = sm90::uniform(static_cast<int>(threadIdx.x) / 32);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int bytes = stage_bytes();
    const int count = rows();
    const int last_tile = tiles(count);
    const unsigned char* const weight_at = ring + 2 * Shape::kBox + warp * args.layout.block_bytes;
    const auto release = [&](int stage) {
      if (lane == 0) sm90::Barrier::arrive(&empty[stage]);
    };
    Mma mma;
    const auto slice = mma.get_slice(threadIdx.x % 128);
    wait_for_previous_kernel();
    int stage = 0;
    uint32_t phase = 0;
    for (int tile = static_cast<int>(blockIdx.x); tile < last_tile;
         tile += static_cast<int>(gridDim.x)) {
      auto acc = partition_fragment_C(mma, cute::Shape<_64, Int<kRows>>{});
      auto total = make_fragment_like(acc);
      uint32_t left[2][4][4];
      // Multiplies half `half` of a block, whose A operands are in left[half].
      const auto multiply = [&](int half, int at, bool begins) {
        const Tensor sb = make_tensor(
            make_smem_ptr(reinterpret_cast<Element*>(ring + at * bytes + half * Shape::kBox)),
            BoxLayout{});
        const Tensor b = slice.partition_fragment_B(sb);
        warpgroup_fence_operand(acc);
        warpgroup_arrive();
        mma.accumulate_ = begins ? GMMA::ScaleOut::Zero : GMMA::ScaleOut::One;
        CUTE_UNROLL
        for (int j = 0; j < 4; ++j) {
          const auto a = make_tensor(reinterpret_cast<Element*>(left[half][j]),
                                     Layout<cute::Shape<cute::Shape<_2, _2, _2>, _1>>{});
          cute::gemm(mma, a, b(_, _, j), acc);
          mma.accumulate_ = GMMA::ScaleOut::One;
        }
        warpgroup_commit_batch();
        warpgroup_fence_operand(acc);
      };
      for (int part = 0; part < args.split.splits; ++part) {
        const int left_over = args.layout.blocks - part * args.split.blocks;
        const int blocks = left_over < args.split.blocks ? left_over : args.split.blocks;
        int held = -1;  // the stage of the block before, which wgmma may still read
        for (int i = 0; i < blocks; ++i) {
          sm90::Barrier::wait(&full[stage], phase);
          const unsigned char* const weight = weight_at + stage * bytes;
          unpack<0>(left[0], weight);
          multiply(0, stage, i == 0);
          warpgroup_wait<1>();
          if (held >= 0) release(held);
          unpack<1>(left[1], weight);
          multiply(1, stage, false);
          warpgroup_wait<1>();
          held = stage;
          if (++stage == args.stages) {
            stage = 0;
            phase ^= 1;
          }
        }
        warpgroup_wait<0>();
        warpgroup_fence_operand(acc);
        release(held);
        CUTE_UNROLL
        for (int i = 0; i < size(acc); ++i) total(i) = part == 0 ? acc(i) : total(i) + acc(i);
      }
      const int strip = tile % tiles_across() * kStrips + group * 4;
      finish(total, group, strip, tile / tiles_across() * kRows, count);
    }
  }
};

/// The kernel: warpgroups 0 and 1 are consumers, and the first warp of the third is the producer.
template <int kRows, int kBits, bool kMinima, int kGroupSteps>
__global__ void __launch_bounds__(384, 1)
    gemm_w4a16_many_kernel(const __grid_constant__ GemmW4a16ManyArgs args) {
  using Gemm = GemmW4a16Many<kRows, kBits, kMinima, kGroupSteps>;
  extern __shared__ __align__(1024) unsigned char w4a16_many_ring[];
  __shared__ uint64_t barriers[2 * W4a16ManyShape<kRows>::kMostStages];
  const Gemm work{args, barriers, barriers + W4a16ManyShape<kRows>::kMostStages, w4a16_many_ring};
  if (threadIdx.x == 0) {
    for (int i = 0; i < args.stages; ++i) {
      sm90::TxBarrier::init(&work.full[i], 1);
      sm90::Barrier::init(&work.empty[i], 8);  // warps that read a stage
    }
    cutlass::arch::fence_barrier_init();
    cute::prefetch_tma_descriptor(&args.weight);
    cute::prefetch_tma_descriptor(&args.x);
  }
  __syncthreads();
  if (sm90::uniform(static_cast<int>(threadIdx.x) / 128) == 2) {
    cutlass::arch::warpgroup_reg_dealloc<40>();
    if (threadIdx.x < 256 + 32 && cute::elect_one_sync()) work.produce();
  } else {
    cutlass::arch::warpgroup_reg_alloc<232>();
    work.consume();
  }
}

}  // namespace packhorse::cuda
