// A consumer warpgroup of a Hopper GEMM (gemm/sm90/kernel.cuh). For each of its tiles it sums the
// products in registers by wgmma, then adds the bias, applies the activation, adds the residual,
// and stores the result by TMA; or it pools the tile instead (gemm/sm90/pool.cuh). Sums of e4m3
// products are first multiplied by their scales (gemm/fp8/epilogue.cuh).
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include "core/math.h"
#include "cuda/common/activations.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/pipeline_sm90.cuh"
#include "cuda/gemm/fp8/epilogue.cuh"
#include "cuda/gemm/sm90/epilogue.cuh"
#include "cuda/gemm/sm90/pool.cuh"
#include "cuda/gemm/sm90/traits.cuh"

namespace packhorse::cuda::sm90_gemm {

using sm90::Barrier;
using sm90::Ring;
using sm90::TxBarrier;
using sm90::uniform;

/// The state of one thread of a consumer warpgroup.
template <class Traits>
struct Consumer {
  using Element = typename Traits::Element;
  using Out = typename Traits::Out;
  using Storage = typename Traits::SharedStorage;
  static constexpr int kColumns = Traits::kColumns;
  static constexpr int kStripe = Traits::kStripe;
  static constexpr int kBoxes = Traits::kBlocks * Traits::kStripes;
  // True where the bias is held in registers during the main loop: the accumulators leave room for
  // it. Sums in parts have two sets of accumulators.
  static constexpr bool kBiasEarly =
      !Traits::kPooled && !Traits::kFloat8 &&
      Traits::kRows * kColumns / 128 + kColumns / 4 <= (Traits::kSplitK ? 64 : 200);

  const GemmArgsSm90& args;
  Storage& smem;
  const int group = uniform(threadIdx.x / 128);
  const int warp = uniform(threadIdx.x / 32);
  const int lane = threadIdx.x % 32;
  Ring<Traits::kStages> ring;
  uint32_t residual_phase = 0;
  int last = 0;  // the stage that the last wgmma of a tile reads
  TileRotation<Traits> rotation;
  TileScales<Traits> float8;

  __device__ Consumer(const GemmArgsSm90& args, Storage& smem) : args(args), smem(smem) {}

  /// The first row of this warp's part of a tile, and the first column of the product.
  __device__ int row_of(const Tile& tile) const {
    const int part = Traits::kPingPong || Traits::kSplitColumns ? 0 : group * Traits::kRows;
    return tile.m * Traits::kTileM + part + warp % 4 * 16;
  }
  __device__ int column_of(const Tile& tile) const {
    return tile.n * Traits::kTileN + (Traits::kSplitColumns ? group * kColumns : 0);
  }
  /// This warp's buffer of 16 rows of one stripe and wgmma block.
  __device__ Out* box(int stripe, int block) const {
    return smem.out[warp][stripe % Traits::kOutStripes * Traits::kBlocks + block];
  }

  /// The two warpgroups of a ping-pong kernel take turns in the main loop (PTX ISA, named
  /// barriers).
  __device__ static void take_turn(int id) {
    asm volatile("bar.sync %0, 256;" ::"r"(id) : "memory");
  }
  __device__ static void give_turn(int id) {
    asm volatile("bar.arrive %0, 256;" ::"r"(id) : "memory");
  }

  /// Starts copying the residual of a tile into the output buffer, once the stores of the tile
  /// before have read that. Called by one lane of each warp.
  __device__ void load_residual(const Tile& tile) {
    cute::tma_store_wait<0>();
    TxBarrier::arrive_and_expect_tx(&smem.residual[warp], kBoxes * Traits::kStoreBox * sizeof(Out));
    for (int s = 0; s < Traits::kStripes; ++s) {
      for (int b = 0; b < Traits::kBlocks; ++b) {
        cute::SM90_TMA_LOAD_2D::copy(&args.residual, &smem.residual[warp],
                                     static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL),
                                     box(s, b), column_of(tile) + s * kStripe,
                                     row_of(tile) + 64 * b);
      }
    }
  }

  /// Tells the producers of all blocks that write to a stage that this warp has read it.
  __device__ void release(int stage) {
    if constexpr (Traits::kCluster > 1) {
      Barrier::arrive(&smem.empty[stage], lane % Traits::kCluster, lane < Traits::kCluster);
    } else {
      if (lane == 0) Barrier::arrive(&smem.empty[stage]);
    }
  }

  /// acc = the sums over the next `blocks_k` stages, of this warpgroup's part of a tile. Leaves the
  /// last wgmma in flight, and the stage that this reads unreleased.
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
        const Tensor sa = make_tensor(make_smem_ptr(&smem.a[ring.index][i][a_row * Traits::kBox]),
                                      typename Traits::template BoxLayout<Traits::kRows>{});
        const Tensor sb = make_tensor(make_smem_ptr(&smem.b[ring.index][i][b_row * Traits::kBox]),
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
      release(last);
    }
    last = ring.index;
    ring.advance();
  }

  /// Waits for the sums that multiply() has left in flight.
  template <class Accumulators>
  __device__ void finish_sums(Accumulators& acc) {
    cute::warpgroup_wait<0>();
    if constexpr (Traits::kFloat8 || Traits::kSplitK) cute::warpgroup_fence_operand(acc);
    release(last);
  }

  /// Multiplies all but the last of several parts, one after the other: before = the sum of these
  /// parts in ascending order. Returns the number of stages of the last part.
  template <class Accumulators>
  __device__ int multiply_parts(Accumulators& before, Accumulators& acc, int blocks_k) {
    if constexpr (Traits::kSplitK) {
      static_assert(kSumUnit % (Traits::kBox * Traits::kBoxes) == 0);
      const int length = blocks_k / args.parts;
      for (int part = 0; part + 1 < args.parts; ++part) {
        multiply(acc, length);
        finish_sums(acc);
#pragma unroll
        for (int i = 0; i < size(acc); ++i) before(i) = part == 0 ? acc(i) : before(i) + acc(i);
      }
      return length;
    }
    return blocks_k;
  }

  /// Loads this lane's bias for `count` blocks of 8 columns of the product.
  __device__ void load_bias(float2* bias, int column, int count) {
    for (int j = 0; j < count; ++j) bias[j] = {};
    if (args.bias == nullptr) return;
#pragma unroll
    for (int j = 0; j < count; ++j) {
      const int at = column + 8 * j + lane % 4 * 2;
      if (at < args.n) bias[j] = __ldg(reinterpret_cast<const float2*>(args.bias + at));
    }
  }

  /// Stores the `count` finished stripes from stripe `first` on by TMA.
  __device__ void store(const Tile& tile, int first, int count) {
    cute::tma_store_fence();
    __syncwarp();
    if (lane == 0) {
      for (int s = first; s < first + count; ++s) {
        for (int b = 0; b < Traits::kBlocks; ++b) {
          cute::SM90_TMA_STORE_2D::copy(&args.out, box(s, b),
                                        column_of(tile) / Traits::kFolds + s * kStripe,
                                        row_of(tile) + 64 * b);
        }
      }
      cute::tma_store_arrive();
    }
    __syncwarp();
  }

  /// Applies bias, `function`, rotation and residual to the accumulators, rounds the results, and
  /// stores them through the output buffer.
  template <class Accumulators, class Function>
  __device__ void finish(const Accumulators& acc, float2* bias, const Tile& tile,
                         const Function& function) {
    constexpr int kStripePairs = Traits::kFolds * kStripe / 8;  // pairs of a lane's bias
    const int column = column_of(tile);
    // Lane l addresses row l % 16 of a 16 x 16 piece, and the 16-byte half l / 16 of that row. Rows
    // have the swizzle of the tensor map.
    const int row = lane % 16;
    const int swizzle = kStripe == 64 ? row % 8 : kStripe == 32 ? row / 2 % 4 : row / 4 % 2;
#pragma unroll
    for (int s = 0; s < Traits::kStripes; ++s) {
      float2* stripe_bias = bias + (kBiasEarly ? s * kStripePairs : 0);
      if (!kBiasEarly) load_bias(stripe_bias, column + s * 8 * kStripePairs, kStripePairs);
      rotation.load_stripe(args.rotation, column + s * kStripe);
      // Waits until earlier stores have read the buffer.
      if (!Traits::kResidual && s % Traits::kOutStripes == 0) {
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
          finish_piece<Traits>(values, acc, s, g, b, stripe_bias, function);
          rotation.turn(values, g, b);
          store_piece<Traits>(values, *address);
        }
      }
      if ((s + 1) % Traits::kOutStripes == 0) {
        store(tile, s + 1 - Traits::kOutStripes, Traits::kOutStripes);
      }
    }
  }

  /// Finishes sums of e4m3 products as `finish` does, after their scales have been applied.
  template <class Accumulators>
  __device__ void finish_float8(const Accumulators& acc, const Tile& tile) {
    const auto apply = [&](auto function) { finish_scaled(acc, tile, function); };
    if constexpr (Traits::kFloat8Out) {
      with_activation(args.activation, apply);
    } else {
      apply([](float x) { return x; });
    }
  }
  template <class Accumulators, class Function>
  __device__ void finish_scaled(const Accumulators& acc, const Tile& tile,
                                const Function& function) {
    using Scales = TileScales<Traits>;
#pragma unroll
    for (int s = 0; s < Traits::kStripes; ++s) {
      const int column = column_of(tile) + s * Traits::kFolds * kStripe;
      rotation.load_stripe(args.rotation, column);
      if (!Traits::kResidual && s % Traits::kOutStripes == 0) {
        if (lane == 0) cute::tma_store_wait<0>();
        __syncwarp();
      }
#pragma unroll
      for (int c = 0; c < Scales::kChunks; ++c) {
        float8.load_columns(args.float8, args.bias, args.n, column + c * Scales::kChunk);
#pragma unroll
        for (int b = 0; b < Traits::kBlocks; ++b) {
#pragma unroll
          for (int g = 0; g < Scales::kPieces; ++g) {
            float values[8];
            float8.finish_piece(values, acc, s, c, g, b, function);
            rotation.turn(values, c * Scales::kPieces + g, b);
            store_scaled_piece<Traits>(values, args.float8.out_factor, box(s, b),
                                       c * Scales::kPieces + g);
          }
        }
      }
      if ((s + 1) % Traits::kOutStripes == 0) {
        store(tile, s + 1 - Traits::kOutStripes, Traits::kOutStripes);
      }
    }
  }

  /// Computes all of this warpgroup's tiles.
  __device__ void run() {
    using namespace cute;
    constexpr int kStep = Traits::kPingPong ? 2 : 1;
    constexpr int kBlock = Traits::kBox * Traits::kBoxes;
    const int blocks_k = ceil_div(args.k, kBlock);
    const int rows = exact_rows(args);
    const Schedule<Traits> schedule(args, rows);
    int index = Schedule<Traits>::first();
    if (Traits::kPingPong && group == 1) {
      index += Schedule<Traits>::step();
      ring.advance(blocks_k);
    }
    bool has_tile = schedule.has(index);
    Tile tile = schedule(index);
    wait_for_previous_kernel();
    if (Traits::kResidual && has_tile && lane == 0) load_residual(tile);
    while (has_tile) {
      auto acc =
          partition_fragment_C(typename Traits::Mma{}, Shape<Int<Traits::kRows>, Int<kColumns>>{});
      float2 bias[kBiasEarly ? kColumns / 8 : Traits::kFolds * kStripe / 8];
      if (kBiasEarly) load_bias(bias, column_of(tile), kColumns / 8);
      rotation.load_rows(args.rotation, row_of(tile), args.rows);
      float8.load_rows(args.float8, row_of(tile), rows);
      // The parity of a barrier cannot tell one use of a stage from the use after next. Taking
      // turns keeps the warpgroups from running so far apart.
      if (Traits::kPingPong && index != Schedule<Traits>::first()) take_turn(1 + group);
      auto before = make_fragment_like(acc);
      multiply(acc, multiply_parts(before, acc, blocks_k));
      if (Traits::kPingPong && schedule.has(index + Schedule<Traits>::step())) give_turn(2 - group);
      finish_sums(acc);
      if (Traits::kSplitK) {
#pragma unroll
        for (int i = 0; i < size(acc); ++i) acc(i) = before(i) + acc(i);
      }
      if constexpr (Traits::kResidual) {
        Barrier::wait(&smem.residual[warp], residual_phase);
        residual_phase ^= 1;
      }
      if constexpr (Traits::kPooled) {
        pool_tile<Traits>(args, acc, row_of(tile), column_of(tile));
      } else if constexpr (Traits::kFloat8) {
        finish_float8(acc, tile);
      } else if constexpr (Traits::kRotated) {
        finish(acc, bias, tile, [](float x) { return x; });
      } else {
        with_activation(args.activation, [&](auto function) { finish(acc, bias, tile, function); });
      }
      index += kStep * Schedule<Traits>::step();
      has_tile = schedule.has(index);
      tile = schedule(index);
      if (Traits::kPingPong) ring.advance(blocks_k);
      if (Traits::kResidual && has_tile && lane == 0) load_residual(tile);
      __syncwarp();
    }
    // Shared memory must stay until the stores have read it.
    if (lane == 0) tma_store_wait<0>();
  }
};

}  // namespace packhorse::cuda::sm90_gemm
