// The kernels of compressed convolutional attention by tensor cores (cca/tile.cuh).
#pragma once

#include "cuda/cca/shares.cuh"
#include "cuda/cca/tile.cuh"
#include "cuda/common/launch.cuh"

namespace packhorse::cuda {

/// The tile of large batches. A warp for every 32 columns: then a multiprocessor has sixteen warps
/// with few registers and little code each.
template <class T, int D>
using ManyTile = CcaTile<T, D, D / 32, 512>;

/// Computes large batches. A block keeps the weights of its head, and its warps go from tile to
/// tile.
template <class T, int D>
__global__ void __launch_bounds__(512, 1)
    cca_kernel(const __grid_constant__ CcaArgs args, CcaShares shares) {
  using Tile = ManyTile<T, D>;
  extern __shared__ uint4 cca_shared_bytes[];
  auto& shared = *reinterpret_cast<typename Tile::Shared*>(cca_shared_bytes);
  const BlockShare share(args, shares, static_cast<int>(blockIdx.x));
  const int head = share.head;
  shared.weights.template bring<Tile::kThreads>(args, head);
  wait_for_previous_kernel();
  let_next_kernel_start();
  const TokenCounts counts(args.batch);
  const Tile work{args, shared, head, static_cast<int>(counts.tokens), counts.sequences};
  __syncthreads();
  const int heads = args.num_heads + args.num_kv_heads;
  const int32_t* const begins = args.batch.cu_seqlens;
  const int warp_of_tile = work.warp % Tile::kWarpsOfTile;
  int begin = 0;  // first row of the sequence that the tile before lies in
  int end = 0;
  for (int first = (share.part * Tile::kTiles + work.warp / Tile::kWarpsOfTile) * Tile::kRows;
       first < work.tokens; first += share.parts * Tile::kTiles * Tile::kRows) {
    if (first >= end) {
      const int sequence = warp_search(work.sequences, first, [&](int i) { return begins[i]; });
      begin = begins[sequence];
      end = begins[sequence + 1];
    }
    const bool plain = first - begin >= 2 && first + Tile::kRows <= end;
    if (!plain) work.template look_back<false>(first);
    // Shifts the values of every `heads`-th row, so that the warps of all heads share this work.
    const int shifted = (head - first % heads + heads) % heads;
    work.shift(first, shifted + warp_of_tile * heads, Tile::kWarpsOfTile * heads, plain);
    work.run(first, plain);
  }
}

template <class T, int D>
using SkinnyTile = CcaTile<T, D, D / 32, 256>;

/// Computes a small batch: as many rows as the tiles of one block have. The block itself keeps its
/// head's latents when it has read the state. The block after those of heads has the values.
template <class T, int D>
__global__ void __launch_bounds__(256, 1) cca_skinny_kernel(const __grid_constant__ CcaArgs args) {
  using Tile = SkinnyTile<T, D>;
  extern __shared__ uint4 cca_shared_bytes[];
  auto& shared = *reinterpret_cast<typename Tile::Shared*>(cca_shared_bytes);
  const int head = static_cast<int>(blockIdx.x);
  const int heads = args.num_heads + args.num_kv_heads;
  const bool values = head == heads;
  if (!values) shared.weights.template bring<Tile::kThreads>(args, head);
  wait_for_previous_kernel();
  let_next_kernel_start();
  const TokenCounts counts(args.batch);
  const Tile work{args, shared, head, static_cast<int>(counts.tokens), counts.sequences};
  __syncthreads();
  const int first = work.warp / Tile::kWarpsOfTile * Tile::kRows;
  work.template look_back<true>(first);
  if (values) {
    work.shift(first, work.warp % Tile::kWarpsOfTile, Tile::kWarpsOfTile, false);
  } else {
    work.run(first, false);  // rows beyond the batch are not stored
  }
  if (args.pages.rows.rank == 0) return;
  __syncthreads();
  const auto mixed = static_cast<int>(args.mixed_columns());
  if (values) {
    work.keep(first, mixed + args.delayed_column, mixed,
              static_cast<int>(args.value_columns()) - args.delayed_column);
  } else {
    work.keep(first, head * D, head * D, D);
  }
}

}  // namespace packhorse::cuda
