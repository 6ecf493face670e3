// Heads of compressed convolutional attention on Hopper, by wgmma and TMA (the Tensor Memory
// Accelerator): two taps in both convolutions, heads of 64 or 128 columns.
//
// The grid is persistent. A block keeps the weights of one head in shared memory and goes through
// tiles of 64 packed rows, in turn with the other blocks of its head. Its producer warp copies
// latents by TMA through two rings of stages: the tile's own head together with the two rows before
// it, and the heads that enter the mean. It also looks up which rows have other tokens before them
// than the rows before them, because sequences begin there; most tiles have none. Three warpgroups
// have a tile each (convolve_sm90_consumer.cuh), so that one multiplies while others compute. The
// last three warps shift the values of rows that all blocks share evenly.
//
// The bits are those of the kernels by mma.sync (convolve_tile.cuh): sums begin with the same
// numbers and take the same sixteen products at a time, in the same order.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/convolution/convolve_sm90_consumer.cuh"
#include "cuda/convolution/convolve_sm90_traits.cuh"
#include "cuda/convolution/latent_rows.cuh"
#include "cuda/launch.cuh"

namespace packhorse::cuda {
namespace sm90 {

/// Brings the weights of a head to shared memory, by all threads of the block. A thread takes 32
/// columns of an input at a time. It needs nothing that a kernel before writes.
template <class Traits>
__device__ void bring_weights(const ConvolveHeadsArgs& args, int head,
                              typename Traits::SharedStorage& smem) {
  constexpr int D = Traits::kHeadDim;
  using T = typename Traits::Element;
  const T* const from =
      static_cast<const T*>(args.grouped.data) + static_cast<int64_t>(head) * Traits::kInputs * D;
  const typename Traits::LayoutWeights layout;
  constexpr int kPieces = Traits::kInputs * Traits::kPanels;
#pragma unroll
  for (int piece = static_cast<int>(threadIdx.x); piece < kPieces; piece += Traits::kThreads) {
    const int panel = piece % Traits::kPanels;  // of outputs
    const int input = piece / Traits::kPanels;
    uint4 columns[4];  // eight each
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      columns[i] =
          *reinterpret_cast<const uint4*>(from + input * D + panel * kPanelColumns + i * 8);
    }
    const auto* words = reinterpret_cast<const uint32_t (*)[4]>(columns);
    const int place = input_place(input / D, input % D);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // The pairs of columns 8 i + 2 j, which are neighbours as outputs.
      const int output = output_place(panel * kPanelColumns + 2 * j);
      *reinterpret_cast<uint4*>(smem.weights + layout(output, place)) =
          make_uint4(words[0][j], words[1][j], words[2][j], words[3][j]);
    }
  }
  const int64_t column = static_cast<int64_t>(head) * D;
  for (int c = static_cast<int>(threadIdx.x); c < D; c += Traits::kThreads) {
    smem.depthwise[0][c] = args.depthwise[column + c];
    smem.depthwise[1][c] = args.depthwise[args.mixed_columns() + column + c];
    smem.depthwise_bias[c] = args.depthwise_bias[column + c];
    smem.grouped_bias[c] = args.grouped_bias[column + c];
    if (2 * c < args.dims) smem.frequencies[c] = args.frequencies[c];
  }
}

/// Writes what Borders says of the tile of rows from `first` on, by a warp.
template <class Traits>
__device__ void find_borders(const ConvolveHeadsArgs& args, int tokens, int sequences, int first,
                             typename Traits::Borders& borders) {
  using T = typename Traits::Element;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t* const begins = args.batch.cu_seqlens;
  const int sequence = warp_search(sequences, first, [&](int i) { return begins[i]; });
  const bool plain = first - begins[sequence] >= Traits::kRowsBefore &&
                     first + Traits::kTileRows <= begins[sequence + 1];
  if (lane == 0) borders.plain = plain ? 1 : 0;
  if (plain) return;
#pragma unroll
  for (int r = lane; r < Traits::kTileRows; r += 32) {
    const int token = first + r;
    uint32_t in_tile = 3;
    if (token < tokens) {
      const LatentPlace place(args, sequences, token);
#pragma unroll
      for (int back = 0; back < Traits::kRowsBefore; ++back) {
        if (token - back - 1 >= place.begin) continue;
        in_tile &= ~(1u << back);
        borders.older[r][back] = latents_before<T>(args, token, place, back + 1);
      }
    }
    borders.in_tile[r] = static_cast<uint8_t>(in_tile);
  }
}

/// The producer warp: copies the tiles of the block's part in ascending order.
template <class Traits>
__device__ void produce(const ConvolveArgsSm90& all, const BlockShare& share,
                        const TokenCounts& counts, typename Traits::SharedStorage& smem) {
  const ConvolveHeadsArgs& args = all.args;
  const auto tokens = static_cast<int>(counts.tokens);
  const bool first_lane = threadIdx.x % 32 == 0;
  const OtherHeads others(args, share.head);
  const auto copy = [](const CUtensorMap& map, uint64_t* full, auto& boxes, int head, int row) {
    for (int box = 0; box < Traits::kBoxes; ++box) {
      cute::SM90_TMA_LOAD_2D::copy(
          &map, full, static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL), boxes[box],
          head * Traits::kHeadDim + box * Traits::kBoxColumns, row);
    }
  };
  Ring<Traits::kOwnStages> own;
  Ring<Traits::kOtherStages> other;
  for (int tile = share.part; tile * Traits::kTileRows < tokens; tile += share.parts) {
    const int first = tile * Traits::kTileRows;
    uint64_t* const full = &smem.own_full[own.index];
    // All lanes wait, because all may write the borders.
    Barrier::wait(&smem.own_empty[own.index], own.phase ^ 1);
    if (first_lane) {
      TxBarrier::arrive_and_expect_tx(full, Traits::kOwnBytes);
      copy(all.tile_and_before, full, smem.own[own.index], share.head, first - Traits::kRowsBefore);
    }
    find_borders<Traits>(args, tokens, counts.sequences, first, smem.borders[own.index]);
    __syncwarp();
    if (first_lane) {
      // The tile's second arrival. It comes ahead of the other heads, whose stages may be fewer
      // than they are: only the consumer of this tile makes room for them.
      Barrier::arrive(full);
      for (int o = 0; o < others.count; ++o) {
        uint64_t* const other_full = &smem.other_full[other.index];
        Barrier::wait(&smem.other_empty[other.index], other.phase ^ 1);
        TxBarrier::arrive_and_expect_tx(other_full, Traits::kOtherBytes);
        copy(all.tile, other_full, smem.other[other.index], others.first + o, first);
        other.advance();
      }
    }
    __syncwarp();
    own.advance();
  }
}

/// Shifts the values of 32 rows from `first` on, by a warp, a few rows at a time.
template <class T>
__device__ void shift_rows(const ConvolveHeadsArgs& args, int tokens, int sequences, int first) {
  constexpr int kAtOnce = 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto columns = static_cast<int>(args.value_columns());
  const auto mixed = static_cast<int>(args.mixed_columns());
  const int own = args.delayed_column;
  const T* delayed = nullptr;  // of this lane's row
  if (first + lane < tokens) {
    delayed = delayed_values<T>(args, first + lane, LatentPlace(args, sequences, first + lane));
  }
  const int rows = min(32, tokens - first);
#pragma unroll 1
  for (int begin = 0; begin < columns; begin += 32 * kVectorSize) {
    const int column = begin + lane * kVectorSize;
#pragma unroll 1
    for (int r = 0; r < rows; r += kAtOnce) {
      uint4 bits[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const auto address =
            __shfl_sync(kFullWarp, reinterpret_cast<unsigned long long>(delayed), (r + i) % 32);
        if (r + i >= rows || column >= columns) continue;
        const T* from = column < own ? latents_of<T>(args, first + r + i) + mixed + column
                                     : reinterpret_cast<const T*>(address);
        if (column >= own && from != nullptr) from += column - own;
        bits[i] = make_uint4(0, 0, 0, 0);
        if (from != nullptr) {
          bits[i] = *reinterpret_cast<const uint4*>(from);
        } else if (args.first_values != nullptr) {
          auto* pairs = reinterpret_cast<typename Element<T>::Pair*>(&bits[i]);
#pragma unroll
          for (int p = 0; p < kVectorSize / 2; ++p) {
            pairs[p] = Element<T>::pair(args.first_values[column + 2 * p],
                                        args.first_values[column + 2 * p + 1]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (r + i >= rows || column >= columns) continue;
        *reinterpret_cast<uint4*>(row_of<T>(args.out, first + r + i) + mixed + column) = bits[i];
      }
    }
  }
}

/// A warp that shifts values: number `warp` of the block's kValueWarps.
template <class Traits>
__device__ void shift_values(const ConvolveHeadsArgs& args, const TokenCounts& counts, int warp) {
  const auto tokens = static_cast<int>(counts.tokens);
  const auto begin = static_cast<int>(blockIdx.x) * Traits::kValueWarps + warp;
  const auto step = static_cast<int>(gridDim.x) * Traits::kValueWarps;
  for (int part = begin; part * 32 < tokens; part += step) {
    shift_rows<typename Traits::Element>(args, tokens, counts.sequences, part * 32);
  }
}

}  // namespace sm90

/// The kernel: the first kConsumers warpgroups are consumers, the warp after them is the producer,
/// and the warps after that shift values.
template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    convolve_heads_sm90_kernel(const __grid_constant__ ConvolveArgsSm90 all) {
  extern __shared__ __align__(1024) uint8_t convolve_sm90_bytes[];
  auto& smem = *reinterpret_cast<typename Traits::SharedStorage*>(convolve_sm90_bytes);
  const ConvolveHeadsArgs& args = all.args;
  const BlockShare share(args, all.shares, static_cast<int>(blockIdx.x));
  if (threadIdx.x == 0) {
    for (int i = 0; i < Traits::kOwnStages; ++i) {
      sm90::Barrier::init(&smem.own_full[i], 2);   // its copies are on their way; its borders known
      sm90::Barrier::init(&smem.own_empty[i], 4);  // the warps of a consumer
    }
    for (int i = 0; i < Traits::kOtherStages; ++i) {
      sm90::Barrier::init(&smem.other_full[i], 1);
      sm90::Barrier::init(&smem.other_empty[i], 4);
    }
    cutlass::arch::fence_barrier_init();
    cute::prefetch_tma_descriptor(&all.tile);
    cute::prefetch_tma_descriptor(&all.tile_and_before);
  }
  sm90::bring_weights<Traits>(args, share.head, smem);
  cutlass::arch::fence_view_async_shared();  // wgmma reads the weights
  __syncthreads();
  wait_for_previous_kernel();
  let_next_kernel_start();
  const TokenCounts counts(args.batch);
  const int warp = sm90::uniform(static_cast<int>(threadIdx.x) / 32);
  if (warp < 4 * Traits::kConsumers) {
    cutlass::arch::warpgroup_reg_alloc<Traits::kConsumerRegisters>();
    ConvolveConsumer<Traits> consumer{args, smem, share.head, static_cast<int>(counts.tokens)};
    consumer.run(share);
  } else {
    cutlass::arch::warpgroup_reg_dealloc<Traits::kOtherRegisters>();
    const int after = warp - 4 * Traits::kConsumers;
    if (after == 0) {
      sm90::produce<Traits>(all, share, counts, smem);
    } else {
      sm90::shift_values<Traits>(args, counts, after - 1);
    }
  }
}

}  // namespace packhorse::cuda
