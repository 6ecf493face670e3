// Heads of compressed convolutional attention on Hopper, by wgmma and TMA (the Tensor Memory
// Accelerator): two taps in both convolutions, heads of 64 or 128 columns.
//
// The grid is persistent. A block keeps the weights of one head in shared memory and goes through
// tiles of 64 packed rows, in turn with the other blocks of its head. Three warpgroups have tiles
// of their own (cca/sm90_consumer.cuh), so that one multiplies while others compute. Each has
// a warp that produces for it (cca/sm90_producer.cuh): it copies latents by TMA, looks up
// before which rows sequences begin, and shifts some rows of values.
//
// The bits are those of the kernels by mma.sync (cca/tile.cuh): sums begin with the same
// numbers and take the same sixteen products at a time, in the same order.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>

#include "cuda/cca/sm90_consumer.cuh"
#include "cuda/cca/sm90_producer.cuh"
#include "cuda/cca/sm90_traits.cuh"
#include "cuda/common/launch.cuh"

namespace packhorse::cuda {
namespace sm90 {

/// Brings the weights of a head to shared memory, by all threads of the block. A thread takes 32
/// columns of an input at a time. It needs nothing that a kernel before writes.
template <class Traits>
__device__ void bring_weights(const CcaArgs& args, int head, typename Traits::SharedStorage& smem) {
  constexpr int D = Traits::kHeadDim;
  using T = typename Traits::Element;
  const T* const from =
      static_cast<const T*>(args.grouped.data) + static_cast<int64_t>(head) * Traits::kInputs * D;
  const auto weights =
      cute::make_tensor(cute::make_smem_ptr(smem.weights), typename Traits::LayoutWeights{});
  constexpr int kPieces = Traits::kInputs * Traits::kPanels;
#pragma unroll
  for (int piece = static_cast<int>(threadIdx.x); piece < kPieces; piece += Traits::kThreads) {
    const int panel = piece % Traits::kPanels;  // panel of output columns
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
      *reinterpret_cast<uint4*>(&weights(output, place)) =
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

}  // namespace sm90

/// The kernel: the first kConsumers warpgroups are consumers, the warps after them their producers,
/// and the last warp is idle.
template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    cca_sm90_kernel(const __grid_constant__ CcaArgsSm90 all) {
  extern __shared__ __align__(1024) uint8_t cca_sm90_bytes[];
  auto& smem = *reinterpret_cast<typename Traits::SharedStorage*>(cca_sm90_bytes);
  const CcaArgs& args = all.args;
  const BlockShare share(args, all.shares, static_cast<int>(blockIdx.x));
  if (threadIdx.x == 0) {
    for (auto& exchange : smem.exchange) {
      for (int i = 0; i < Traits::kStages; ++i) {
        // A tile of the own head takes two arrivals: its copies are on their way, and its borders
        // are known.
        const bool own = i < Traits::own_stages(share.head < args.num_heads);
        sm90::Barrier::init(&exchange.full[i], own ? 2 : 1);
        sm90::Barrier::init(&exchange.empty[i], 4);  // the warps of the consumer
      }
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
    CcaConsumer<Traits> consumer{args, smem, share.head, static_cast<int>(counts.tokens)};
    consumer.run(share);
  } else {
    cutlass::arch::warpgroup_reg_dealloc<Traits::kProducerRegisters>();
    const int group = warp - 4 * Traits::kConsumers;
    if (group < Traits::kConsumers) {
      CcaProducer<Traits> producer{all,
                                   smem.exchange[group],
                                   smem.stages[group],
                                   share.head,
                                   group,
                                   static_cast<int>(counts.tokens),
                                   counts.sequences};
      producer.run(share);
    }
  }
}

}  // namespace packhorse::cuda
