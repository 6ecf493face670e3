// Arguments of a dense layer for few rows (gemm/skinny/kernel.cuh), and the copies of its weight
// and its rows to a ring of stages in shared memory, which two lanes issue by TMA (the Tensor
// Memory Accelerator).
#pragma once

#include <cutlass/arch/barrier.h>

#include <cute/arch/copy_sm90_tma.hpp>

#include "core/math.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/pipeline_sm90.cuh"
#include "cuda/gemm/skinny/skinny.h"

namespace packhorse::cuda {

struct GemmSkinnyArgs {
  /// Boxes of 64 elements of k and all features of a tile. With weight_at_once, one box has all of
  /// a stage, from a map whose last dimensions count blocks of k and parts.
  CUtensorMap weight;
  /// Boxes of 64 elements of k and all rows of x. With rows_at_once, one box has all of a stage.
  CUtensorMap x;
  const float* bias;  // [n] or null
  const void* residual;
  int64_t ldr;
  void* out;
  int64_t ldo;
  const int32_t* row_count;  // null: the number of rows is `rows`
  int32_t rows, n, k;
  GemmSkinnyTile tile;
  Activation activation;
  GemmRotation rotation;
};

/// Shared memory of fixed size, beside the stages.
struct GemmSkinnyShared {
  uint64_t full[kMostSkinnyStages];
  uint64_t empty[kMostSkinnyStages];
};

/// The stages of one block, and the two lanes that fill them. kBoxes: boxes of a part in a stage,
/// GemmSkinnyTile::boxes. kRowBlocks: GemmSkinnyTile::row_blocks.
template <int kBoxes, int kRowBlocks, bool kGated>
struct GemmSkinnyStages {
  static constexpr int kBoxRow = 128;  // bytes of a row of a box
  static constexpr int kRowsBox = kRowBlocks * kSkinnyRows * kBoxRow;
  const GemmSkinnyArgs& args;
  GemmSkinnyShared& shared;
  unsigned char* ring;

  __device__ int weight_box() const { return round_up(args.tile.features, 8) * kBoxRow; }
  __device__ int stage_bytes() const {
    return args.tile.parts * kBoxes * (weight_box() + kRowsBox);
  }
  __device__ int tiles() const { return ceil_div(args.n, args.tile.features); }
  __device__ int rows() const {
    return args.row_count == nullptr ? args.rows : min(args.rows, *args.row_count);
  }

  /// Goes through the stages of all tiles of this block: visit(index, stage, phase, tile, step).
  template <class Visit>
  __device__ void for_stages(Visit visit) const {
    const int last_tile = tiles();
    int index = 0;
    int stage = 0;
    uint32_t phase = 0;
    for (int tile = static_cast<int>(blockIdx.x); tile < last_tile;
         tile += static_cast<int>(gridDim.x)) {
      for (int step = 0; step < args.tile.steps; ++step) {
        visit(index++, stage, phase, tile, step);
        if (++stage == args.tile.stages) {
          stage = 0;
          phase ^= 1;
        }
      }
    }
  }

  /// Calls visit(k) for the boxes of a stage: kBoxes boxes of 64 elements of k for each part. Boxes
  /// past the end of a part begin past the end of k, where TMA reads zeros, whose products change
  /// no sum.
  template <class Visit>
  __device__ void for_boxes(int step, Visit visit) const {
    const int length = args.k / args.tile.parts;
    for (int part = 0; part < args.tile.parts; ++part) {
#pragma unroll
      for (int i = 0; i < kBoxes; ++i) {
        const int in_part = (step * kBoxes + i) * 64;
        visit(in_part < length ? part * length + in_part : round_up(args.k, 64));
      }
    }
  }

  /// Copies the weight, by one lane. The weight does not depend on the kernel before, so the lane
  /// waits for that kernel only when the stages are full.
  __device__ void bring_weight() const {
    bool waited = false;
    const auto wait = [&] {
      wait_for_previous_kernel();
      let_next_kernel_start();
      waited = true;
    };
    const int bytes = stage_bytes();
    const int box_bytes = weight_box();
    constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
    for_stages([&](int index, int stage, uint32_t phase, int tile, int step) {
      if (index >= args.tile.stages) {
        if (!waited) wait();
        sm90::Barrier::wait(&shared.empty[stage], phase ^ 1);
      }
      uint64_t* const full = &shared.full[stage];
      sm90::TxBarrier::arrive_and_expect_tx(
          full, args.tile.parts * kBoxes * args.tile.features * kBoxRow);
      unsigned char* to = ring + stage * bytes;
      const int feature = tile * args.tile.features;
      if (args.tile.weight_at_once) {
        cute::SM90_TMA_LOAD_4D::copy(&args.weight, full, kHint, to, 0, feature, step * kBoxes, 0);
        return;
      }
      for_boxes(step, [&](int k) {
        if constexpr (kGated) {
          cute::SM90_TMA_LOAD_5D::copy(&args.weight, full, kHint, to, k, 0, 0, 0,
                                       feature / (2 * kGateBlock));
        } else {
          cute::SM90_TMA_LOAD_2D::copy(&args.weight, full, kHint, to, k, feature);
        }
        to += box_bytes;
      });
    });
    if (!waited) wait();
  }

  /// Copies the rows, by a lane of another warp.
  __device__ void bring_rows() const {
    wait_for_previous_kernel();
    const int bytes = stage_bytes();
    unsigned char* const rows_at = ring + args.tile.parts * kBoxes * weight_box();
    constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);
    const int copied = args.tile.rows_at_once ? kRowsBox : args.rows * kBoxRow;
    for_stages([&](int index, int stage, uint32_t phase, int, int step) {
      if (index >= args.tile.stages) sm90::Barrier::wait(&shared.empty[stage], phase ^ 1);
      uint64_t* const full = &shared.full[stage];
      sm90::TxBarrier::arrive_and_expect_tx(full, args.tile.parts * kBoxes * copied);
      unsigned char* to = rows_at + stage * bytes;
      if (args.tile.rows_at_once) {
        cute::SM90_TMA_LOAD_4D::copy(&args.x, full, kHint, to, 0, 0, step * kBoxes, 0);
        return;
      }
      for_boxes(step, [&](int k) {
        cute::SM90_TMA_LOAD_2D::copy(&args.x, full, kHint, to, k, 0);
        to += kRowsBox;
      });
    });
  }
};

}  // namespace packhorse::cuda
