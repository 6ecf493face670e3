// One Hopper GEMM: a producer warp streams both operands through shared memory by TMA, two consumer
// warpgroups multiply (wgmma) and finish tiles of the output.
//
// Ping-pong kernels give each warpgroup tiles of its own: one multiplies while the other applies
// bias, activation and residual. Cooperative kernels split one tile: half the epilogue at the end
// of a launch that has one tile per multiprocessor. Either way k is summed in order, 16 at a time.
//
// A warpgroup has a shared buffer for its whole tile. The residual comes into it by TMA during the
// mainloop, the epilogue works in place (ldmatrix, stmatrix) and TMA takes the result away, so that
// nothing inside a tile waits; each warp handles its own 16-row boxes and synchronises with none.
#pragma once

#include <cuda.h>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>
#include <cutlass/numeric_conversion.h>
#include <cutlass/numeric_types.h>

#include <cute/arch/copy_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

#include "cuda/epilogue.cuh"
#include "cuda/gemm.h"
#include "cuda/launch.cuh"
#include "cuda/pipeline_sm90.cuh"

namespace packhorse::cuda {

struct GemmArgsSm90 {
  CUtensorMap a, weight, residual, out;
  const float* bias;         // or null
  const int32_t* row_count;  // or null: rows
  int32_t rows, n, k;
  int32_t panel;  // tile columns that are finished, all rows long, before the next ones begin
  Activation activation;
};

template <class Element_, int tile_m, int tile_n, int k_boxes, bool ping_pong, bool has_residual>
struct GemmTraits {
  using Element = Element_;
  static constexpr int kTileM = tile_m, kTileN = tile_n;
  static constexpr int kBoxes = k_boxes;  // boxes of 64 k in a stage
  static constexpr bool kPingPong = ping_pong;
  static constexpr bool kResidual = has_residual;
  // Large accumulators take registers from the producer's warpgroup; with small ones a block leaves
  // room for blocks of the kernels before and after.
  static constexpr bool kMoveRegisters = tile_m * tile_n / (ping_pong ? 128 : 256) > 64;
  static constexpr int kThreads = 256 + (kMoveRegisters ? 128 : 32);

  // A warpgroup's part of a tile.
  static constexpr bool kSplitColumns = !ping_pong && tile_m == 64;
  static constexpr int kRows = ping_pong || kSplitColumns ? tile_m : tile_m / 2;
  static constexpr int kColumns = kSplitColumns ? tile_n / 2 : tile_n;
  static constexpr int kBlocks = kRows / 64;  // wgmma blocks, one above the other
  // What a warp stores at once: 16 rows, one swizzle span wide.
  static constexpr int kStripe = kColumns % 64 == 0 ? 64 : kColumns % 32 == 0 ? 32 : 16;
  static constexpr int kStripes = kColumns / kStripe;
  static constexpr int kStoreBox = 16 * kStripe;
  static_assert(kRows % 64 == 0 && kColumns % 16 == 0);

  // Stripes in the buffer at a time: all of them, except where stages need the room more.
  static constexpr int kOutStripes = has_residual || kStripes < 3 ? kStripes
                                     : kStripes % 2 == 0          ? kStripes / 2
                                                                  : 1;

  static constexpr int kWeightBytes = k_boxes * tile_n * 64 * 2;
  static constexpr int kStageBytes = k_boxes * tile_m * 64 * 2 + kWeightBytes;
  static constexpr int kOutBytes = 8 * kBlocks * kOutStripes * kStoreBox * 2;
  static constexpr int kMostBytes = 232448;  // of shared memory for one block
  static constexpr int kStages = (kMostBytes - kOutBytes - 1024) / kStageBytes;
  static_assert(kStages >= 3);

  using Mma = decltype(cute::make_tiled_mma(
      cute::SM90::GMMA::ss_op_selector<Element, Element, float,
                                       cute::Shape<cute::_64, cute::Int<kColumns>, cute::_64>,
                                       cute::SM90::GMMA::Major::K, cute::SM90::GMMA::Major::K>()));
  template <int rows>
  using BoxLayout = decltype(cute::tile_to_shape(cute::SM90::GMMA::Layout_K_SW128_Atom<Element>{},
                                                 cute::Shape<cute::Int<rows>, cute::_64>{}));

  struct SharedStorage {
    alignas(1024) Element a[kStages][k_boxes][tile_m * 64];
    alignas(1024) Element b[kStages][k_boxes][tile_n * 64];
    alignas(1024) Element out[8][kBlocks * kOutStripes][kStoreBox];  // of each warp
    alignas(8) uint64_t full[kStages];
    uint64_t empty[kStages];
    uint64_t residual[8];
  };
  // The base of dynamic shared memory is aligned to 1024 bytes here.
  static constexpr int kSharedBytes = sizeof(SharedStorage);
  static_assert(kSharedBytes <= kMostBytes);
};

namespace sm90_gemm {

using sm90::Barrier;
using sm90::Ring;
using sm90::TxBarrier;
using sm90::uniform;

struct Tile {
  int m, n;
  bool valid;
};

/// Tiles in order: columns fastest inside panels, panel after panel, so that a panel's weights stay
/// in L2 while the rows pass by. A block takes every gridDim.x-th.
template <class Traits>
struct Schedule {
  int tiles_m, tiles_n, panel;
  __device__ Schedule(const GemmArgsSm90& args, int rows)
      : tiles_m((rows + Traits::kTileM - 1) / Traits::kTileM),
        tiles_n((args.n + Traits::kTileN - 1) / Traits::kTileN),
        panel(min(args.panel, tiles_n)) {}
  __device__ Tile operator()(int index) const {
    if (panel == tiles_n) {
      const int m = index / tiles_n;
      return {m, index - m * tiles_n, m < tiles_m};
    }
    const int first_n = index / max(1, tiles_m * panel) * panel;
    const int in_panel = index - tiles_m * first_n;
    const int width = max(1, min(panel, tiles_n - first_n));
    const int m = in_panel / width;
    return {m, first_n + in_panel - m * width, m < tiles_m && first_n < tiles_n};
  }
};

__device__ inline int exact_rows(const GemmArgsSm90& args) {
  return args.row_count == nullptr ? args.rows : *args.row_count;
}

template <class Traits>
__device__ void produce(const GemmArgsSm90& args, typename Traits::SharedStorage& smem) {
  constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
  constexpr int kBlock = 64 * Traits::kBoxes;  // k of a stage
  const int blocks_k = (args.k + kBlock - 1) / kBlock;
  auto load = [&](const CUtensorMap& map, auto* to, int stage, int block_k, int row) {
    for (int box = 0; box < Traits::kBoxes; ++box) {
      cute::SM90_TMA_LOAD_2D::copy(&map, &smem.full[stage], kHint, to[stage][box],
                                   block_k * kBlock + 64 * box, row);
    }
  };

  // The weight does not depend on the kernel before. Where it is one panel, the first tile's place
  // does not depend on the row count either: its weights come while that kernel finishes.
  const Schedule<Traits> most(args, args.rows);
  Tile tile = most(blockIdx.x);
  const bool early = most.panel == most.tiles_n;
  const int ahead = min(blocks_k, Traits::kStages);
  auto load_weights = [&] {
    for (int i = 0; i < ahead; ++i) {
      TxBarrier::expect_transaction(&smem.full[i], Traits::kWeightBytes);
      load(args.weight, smem.b, i, i, tile.n * Traits::kTileN);
    }
  };
  if (early) {
    load_weights();
    // What the stages cannot hold goes to L2, a share by each block of a tile column.
    for (int i = ahead + tile.m; i < blocks_k; i += most.tiles_m) {
      for (int box = 0; box < Traits::kBoxes; ++box) {
        cute::SM90_TMA_LOAD_2D::PREFETCH::copy(&args.weight, i * kBlock + 64 * box,
                                               tile.n * Traits::kTileN);
      }
    }
  }
  wait_for_previous_kernel();
  let_next_kernel_start();
  const Schedule<Traits> schedule(args, exact_rows(args));
  if (!early) {
    tile = schedule(blockIdx.x);
    if (!tile.valid) return;
    load_weights();
  }
  for (int i = 0; i < ahead; ++i) {
    TxBarrier::arrive_and_expect_tx(&smem.full[i], Traits::kStageBytes - Traits::kWeightBytes);
    load(args.a, smem.a, i, i, tile.m * Traits::kTileM);
  }
  if (!schedule(blockIdx.x).valid) {  // shared memory must outlive the copies into it
    for (int i = 0; i < ahead; ++i) Barrier::wait(&smem.full[i], 0);
    return;
  }

  Ring<Traits::kStages> ring;
  ring.advance(ahead);
  int block_k = ahead;
  for (int index = blockIdx.x;;) {
    for (; block_k < blocks_k; ++block_k) {
      Barrier::wait(&smem.empty[ring.index], ring.phase ^ 1);
      TxBarrier::arrive_and_expect_tx(&smem.full[ring.index], Traits::kStageBytes);
      load(args.a, smem.a, ring.index, block_k, tile.m * Traits::kTileM);
      load(args.weight, smem.b, ring.index, block_k, tile.n * Traits::kTileN);
      ring.advance();
    }
    index += gridDim.x;
    tile = schedule(index);
    if (!tile.valid) return;
    block_k = 0;
  }
}

template <class Traits>
struct Consumer {
  using Element = typename Traits::Element;
  using Storage = typename Traits::SharedStorage;
  static constexpr int kColumns = Traits::kColumns;
  static constexpr int kStripe = Traits::kStripe;
  static constexpr int kBoxes = Traits::kBlocks * Traits::kStripes;
  // Bias in registers during the mainloop, where the accumulators leave room.
  static constexpr bool kBiasEarly = Traits::kRows * kColumns / 128 + kColumns / 4 <= 200;

  const GemmArgsSm90& args;
  Storage& smem;
  const int group = uniform(threadIdx.x / 128);
  const int warp = uniform(threadIdx.x / 32);
  const int lane = threadIdx.x % 32;
  Ring<Traits::kStages> ring;
  uint32_t residual_phase = 0;
  int last = 0;  // the stage that the last wgmmas of a tile read

  __device__ Consumer(const GemmArgsSm90& args, Storage& smem) : args(args), smem(smem) {}

  __device__ int row_of(const Tile& tile) const {
    const int part = Traits::kPingPong || Traits::kSplitColumns ? 0 : group * Traits::kRows;
    return tile.m * Traits::kTileM + part + warp % 4 * 16;
  }
  __device__ int column_of(const Tile& tile) const {
    return tile.n * Traits::kTileN + (Traits::kSplitColumns ? group * kColumns : 0);
  }
  __device__ Element* box(int stripe, int block) const {
    return smem.out[warp][stripe % Traits::kOutStripes * Traits::kBlocks + block];
  }

  __device__ static void take_turn(int id) {
    asm volatile("bar.sync %0, 256;" ::"r"(id) : "memory");
  }
  __device__ static void give_turn(int id) {
    asm volatile("bar.arrive %0, 256;" ::"r"(id) : "memory");
  }

  /// By one lane, once the stores of the tile before have read the buffer.
  __device__ void load_residual(const Tile& tile) {
    cute::tma_store_wait<0>();
    TxBarrier::arrive_and_expect_tx(&smem.residual[warp],
                                    kBoxes * Traits::kStoreBox * sizeof(Element));
    for (int s = 0; s < Traits::kStripes; ++s) {
      for (int b = 0; b < Traits::kBlocks; ++b) {
        cute::SM90_TMA_LOAD_2D::copy(&args.residual, &smem.residual[warp],
                                     static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL),
                                     box(s, b), column_of(tile) + s * kStripe,
                                     row_of(tile) + 64 * b);
      }
    }
  }

  template <class Accumulators>
  __device__ void multiply(Accumulators& acc, int blocks_k) {
    using namespace cute;
    typename Traits::Mma mma;
    const auto slice = mma.get_slice(threadIdx.x % 128);
    const int a_row = Traits::kPingPong || Traits::kSplitColumns ? 0 : group * Traits::kRows;
    const int b_row = Traits::kSplitColumns ? group * kColumns : 0;
    auto block = [&](bool first) {
      Barrier::wait(&smem.full[ring.index], ring.phase);
      warpgroup_fence_operand(acc);
      warpgroup_arrive();
      mma.accumulate_ = first ? GMMA::ScaleOut::Zero : GMMA::ScaleOut::One;
      CUTE_UNROLL
      for (int i = 0; i < Traits::kBoxes; ++i) {
        const Tensor sa = make_tensor(make_smem_ptr(&smem.a[ring.index][i][a_row * 64]),
                                      typename Traits::template BoxLayout<Traits::kRows>{});
        const Tensor sb = make_tensor(make_smem_ptr(&smem.b[ring.index][i][b_row * 64]),
                                      typename Traits::template BoxLayout<kColumns>{});
        const Tensor a = slice.partition_fragment_A(sa);
        const Tensor b = slice.partition_fragment_B(sb);
        CUTE_UNROLL
        for (int j = 0; j < 4; ++j) {
          cute::gemm(mma, a(_, _, j), b(_, _, j), acc);
          mma.accumulate_ = GMMA::ScaleOut::One;
        }
      }
      warpgroup_commit_batch();
      warpgroup_fence_operand(acc);
    };
    block(true);
    for (int i = 1; i < blocks_k; ++i) {
      last = ring.index;
      ring.advance();
      block(false);
      warpgroup_wait<1>();
      if (lane == 0) Barrier::arrive(&smem.empty[last]);
    }
    last = ring.index;
    ring.advance();
  }

  __device__ void load_bias(float2* bias, int column, int count) {
    for (int j = 0; j < count; ++j) bias[j] = {};
    if (args.bias == nullptr) return;
#pragma unroll
    for (int j = 0; j < count; ++j) {
      const int at = column + 8 * j + lane % 4 * 2;
      if (at < args.n) bias[j] = __ldg(reinterpret_cast<const float2*>(args.bias + at));
    }
  }

  /// Has TMA take `count` finished stripes away.
  __device__ void store(const Tile& tile, int first, int count) {
    cute::tma_store_fence();
    __syncwarp();
    if (lane == 0) {
      for (int s = first; s < first + count; ++s) {
        for (int b = 0; b < Traits::kBlocks; ++b) {
          cute::SM90_TMA_STORE_2D::copy(&args.out, box(s, b), column_of(tile) + s * kStripe,
                                        row_of(tile) + 64 * b);
        }
      }
      cute::tma_store_arrive();
    }
    __syncwarp();
  }

  /// Bias, `function`, residual, rounding; through the buffer to memory.
  template <class Accumulators, class Function>
  __device__ void finish(const Accumulators& acc, float2* bias, const Tile& tile,
                         const Function& function) {
    const int column = column_of(tile);
    // Lane l addresses row l % 16 of a 16 x 16 piece, 16-byte half l / 16; spans are swizzled.
    const int row = lane % 16;
    const int swizzle = kStripe == 64 ? row % 8 : kStripe == 32 ? row / 2 % 4 : row / 4 % 2;
#pragma unroll
    for (int s = 0; s < Traits::kStripes; ++s) {
      float2* stripe_bias = bias + (kBiasEarly ? s * (kStripe / 8) : 0);
      if (!kBiasEarly) load_bias(stripe_bias, column + s * kStripe, kStripe / 8);
      if (!Traits::kResidual && s % Traits::kOutStripes == 0) {  // what was there has been read
        if (lane == 0) cute::tma_store_wait<0>();
        __syncwarp();
      }
#pragma unroll
      for (int b = 0; b < Traits::kBlocks; ++b) {
#pragma unroll
        for (int g = 0; g < kStripe / 16; ++g) {
          auto* address = reinterpret_cast<cute::uint128_t*>(box(s, b) + row * kStripe +
                                                             ((g * 2 + lane / 16) ^ swizzle) * 8);
          float values[8];
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            const float2 pair = stripe_bias[g * 2 + i / 4];
            values[i] =
                function(acc(s * (kStripe / 2) + g * 8 + i, b, 0) + (i % 2 == 0 ? pair.x : pair.y));
          }
          uint32_t packed[4];
          if constexpr (Traits::kResidual) {
            cute::SM75_U32x4_LDSM_N::copy(*address, packed[0], packed[1], packed[2], packed[3]);
            cutlass::NumericArrayConverter<float, Element, 2> widen;
#pragma unroll
            for (int q = 0; q < 4; ++q) {
              const auto pair =
                  widen(reinterpret_cast<const cutlass::Array<Element, 2>&>(packed[q]));
              values[2 * q] += pair[0];
              values[2 * q + 1] += pair[1];
            }
          }
          cutlass::NumericArrayConverter<Element, float, 2> narrow;
#pragma unroll
          for (int q = 0; q < 4; ++q) {
            const auto pair =
                narrow(reinterpret_cast<const cutlass::Array<float, 2>&>(values[2 * q]));
            packed[q] = reinterpret_cast<const uint32_t&>(pair);
          }
          cute::SM90_U32x4_STSM_N::copy(packed[0], packed[1], packed[2], packed[3], *address);
        }
      }
      if ((s + 1) % Traits::kOutStripes == 0) {
        store(tile, s + 1 - Traits::kOutStripes, Traits::kOutStripes);
      }
    }
  }

  __device__ void run() {
    using namespace cute;
    constexpr int kStep = Traits::kPingPong ? 2 : 1;
    const int blocks_k = (args.k + 64 * Traits::kBoxes - 1) / (64 * Traits::kBoxes);
    wait_for_previous_kernel();
    const Schedule<Traits> schedule(args, exact_rows(args));
    int index = blockIdx.x;
    if (Traits::kPingPong && group == 1) {
      index += gridDim.x;
      ring.advance(blocks_k);
    }
    Tile tile = schedule(index);
    if (Traits::kResidual && tile.valid && lane == 0) load_residual(tile);
    while (tile.valid) {
      auto acc =
          partition_fragment_C(typename Traits::Mma{}, Shape<Int<Traits::kRows>, Int<kColumns>>{});
      float2 bias[kBiasEarly ? kColumns / 8 : kStripe / 8];
      if (kBiasEarly) load_bias(bias, column_of(tile), kColumns / 8);
      // Turns keep a warpgroup from waiting for a stage's use after next: parities repeat.
      if (Traits::kPingPong && index != blockIdx.x) take_turn(1 + group);
      multiply(acc, blocks_k);
      if (Traits::kPingPong && schedule(index + gridDim.x).valid) give_turn(2 - group);
      warpgroup_wait<0>();
      if (lane == 0) Barrier::arrive(&smem.empty[last]);
      if constexpr (Traits::kResidual) {
        Barrier::wait(&smem.residual[warp], residual_phase);
        residual_phase ^= 1;
      }
      with_activation(args.activation, [&](auto function) { finish(acc, bias, tile, function); });
      index += kStep * gridDim.x;
      tile = schedule(index);
      if (Traits::kPingPong) ring.advance(blocks_k);
      if (Traits::kResidual && tile.valid && lane == 0) load_residual(tile);
      __syncwarp();
    }
    // Shared memory must outlive the stores that read it.
    if (lane == 0) tma_store_wait<0>();
  }
};

}  // namespace sm90_gemm

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    gemm_sm90_kernel(const __grid_constant__ GemmArgsSm90 args) {
  extern __shared__ __align__(1024) char shared[];
  auto& smem = *reinterpret_cast<typename Traits::SharedStorage*>(shared);
  using namespace sm90_gemm;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Traits::kStages; ++i) {
      TxBarrier::init(&smem.full[i], 1);
      Barrier::init(&smem.empty[i], Traits::kPingPong ? 4 : 8);  // warps that read a stage
    }
    for (uint64_t& barrier : smem.residual) TxBarrier::init(&barrier, 1);
    cutlass::arch::fence_barrier_init();
  }
  if (threadIdx.x == 32) {
    cute::prefetch_tma_descriptor(&args.a);
    cute::prefetch_tma_descriptor(&args.weight);
    cute::prefetch_tma_descriptor(&args.out);
    if (Traits::kResidual) cute::prefetch_tma_descriptor(&args.residual);
  }
  __syncthreads();
  if (uniform(threadIdx.x / 128) == 2) {
    if (Traits::kMoveRegisters) cutlass::arch::warpgroup_reg_dealloc<40>();
    if (threadIdx.x < 256 + 32 && cute::elect_one_sync()) produce<Traits>(args, smem);
  } else {
    if (Traits::kMoveRegisters) cutlass::arch::warpgroup_reg_alloc<232>();
    Consumer<Traits>(args, smem).run();
  }
}

}  // namespace packhorse::cuda
