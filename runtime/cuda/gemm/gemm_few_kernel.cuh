// A dense layer for few rows (up to 64). Its time is that of reading the weight once, so all else
// stands back behind that: each block has its share of the weight's rows, which a warp of its own
// brings through a ring of stages by TMA from the moment the block starts, while the kernel before
// still runs.
//
// The weight is the left operand of wgmma and the rows of the batch are the right one, the other way
// round than in gemm_sm90_kernel.cuh: so a product has 64 columns of the output and as few rows as
// there are. The sum over k is formed in the same order, 16 elements at a time, and tensor cores
// give the same bits with operands exchanged (tests/gpu/test_gpu_gemm_few.py).
#pragma once

#include <cutlass/arch/barrier.h>
#include <cutlass/numeric_types.h>

#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/gemm_few.h"
#include "cuda/launch.cuh"
#include "cuda/pipeline_sm90.cuh"
#include "cuda/rows/rotation.cuh"
#include "cuda/rows/row.cuh"
#include "ops/kv_pages.h"

namespace packhorse::cuda {

struct GemmFewArgs {
  /// Boxes of 64 elements of k and all features of a tile; of weight_at_once, a stage's boxes, from
  /// a map whose last dimension counts blocks of k.
  CUtensorMap weight;
  CUtensorMap x;  // likewise: boxes of all rows
  const float* bias;  // [n] or null
  const void* residual;
  int64_t ldr;
  void* out;
  int64_t ldo;
  const int32_t* row_count;  // null: the number of rows is `rows`
  int32_t rows, n, k;
  GemmFewTile tile;
  Activation activation;
  GemmRotation rotation;
  GemmAppend append;
};

/// Shared memory of fixed size, beside the stages.
struct GemmFewShared {
  uint64_t full[kMostFewStages];
  uint64_t empty[kMostFewStages];
  int64_t page_row[kMostFewRows];  // of each row: the element in `keys` where its first head begins
};

template <class T, int kRowBlocks, bool kGated>
struct GemmFew {
  static constexpr int kRows = 8 * kRowBlocks;
  static constexpr int kBoxRow = 128;  // bytes of a row of a box
  static constexpr int kRowsBox = kRows * kBoxRow;
  using Operand = std::conditional_t<std::is_same_v<T, __half>, cutlass::half_t,
                                     cutlass::bfloat16_t>;
  using Mma = decltype(cute::make_tiled_mma(
      cute::SM90::GMMA::ss_op_selector<Operand, Operand, float,
                                       cute::Shape<cute::_64, cute::Int<kRows>, cute::_64>,
                                       cute::SM90::GMMA::Major::K, cute::SM90::GMMA::Major::K>()));
  template <int rows>
  using BoxLayout = decltype(cute::tile_to_shape(cute::SM90::GMMA::Layout_K_SW128_Atom<Operand>{},
                                                 cute::Shape<cute::Int<rows>, cute::_64>{}));
  // A barrier of the consumers and the warp that brings the rows; 0 is __syncthreads.
  static constexpr int kPagesKnown = 1;

  const GemmFewArgs& args;
  GemmFewShared& shared;
  unsigned char* ring;

  __device__ int weight_box() const { return (args.tile.features + 7) / 8 * 8 * kBoxRow; }
  __device__ int stage_bytes() const {
    return args.tile.boxes * (weight_box() + kRowsBox);
  }
  __device__ int boxes_k() const { return (args.k + 63) / 64; }
  __device__ int tiles() const { return (args.n + args.tile.features - 1) / args.tile.features; }
  __device__ int rows() const {
    return args.row_count == nullptr ? args.rows : min(args.rows, *args.row_count);
  }

  /// Goes through the stages of all tiles of this block: visit(index, stage, phase, tile, first box,
  /// number of boxes).
  template <class Visit>
  __device__ void for_stages(Visit visit) const {
    const int boxes = boxes_k();
    int index = 0;
    int stage = 0;
    uint32_t phase = 0;
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles();
         tile += static_cast<int>(gridDim.x)) {
      for (int box = 0; box < boxes; box += args.tile.boxes) {
        visit(index++, stage, phase, tile, box, min(args.tile.boxes, boxes - box));
        if (++stage == args.tile.stages) {
          stage = 0;
          phase ^= 1;
        }
      }
    }
  }

  /// One lane brings the weight. It needs nothing of the kernel before, so it does not wait for it
  /// until the stages are full.
  __device__ void bring_weight() const {
    bool waited = false;
    const auto wait = [&] {
      wait_for_previous_kernel();
      let_next_kernel_start();
      waited = true;
    };
    for_stages([&](int index, int stage, uint32_t phase, int tile, int box, int boxes) {
      if (index >= args.tile.stages) {
        if (!waited) wait();
        sm90::Barrier::wait(&shared.empty[stage], phase ^ 1);
      }
      // A copy of all boxes brings those past k, too, as zeros.
      const int brought = args.tile.weight_at_once ? args.tile.boxes : boxes;
      sm90::TxBarrier::arrive_and_expect_tx(&shared.full[stage],
                                            brought * args.tile.features * kBoxRow);
      constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
      if (args.tile.weight_at_once) {
        cute::SM90_TMA_LOAD_3D::copy(&args.weight, &shared.full[stage], kHint,
                                     ring + stage * stage_bytes(), 0, tile * args.tile.features,
                                     box);
        return;
      }
      for (int i = 0; i < boxes; ++i) {
        unsigned char* to = ring + stage * stage_bytes() + i * weight_box();
        if constexpr (kGated) {
          cute::SM90_TMA_LOAD_5D::copy(&args.weight, &shared.full[stage], kHint, to, (box + i) * 64,
                                       0, 0, 0, tile * args.tile.features / (2 * kGateBlock));
        } else {
          cute::SM90_TMA_LOAD_2D::copy(&args.weight, &shared.full[stage], kHint, to,
                                       (box + i) * 64, tile * args.tile.features);
        }
      }
    });
    if (!waited) wait();
  }

  /// A lane of another warp brings the rows.
  __device__ void bring_rows() const {
    wait_for_previous_kernel();
    for_stages([&](int index, int stage, uint32_t phase, int, int box, int boxes) {
      if (index >= args.tile.stages) sm90::Barrier::wait(&shared.empty[stage], phase ^ 1);
      constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);
      unsigned char* to = ring + stage * stage_bytes() + args.tile.boxes * weight_box();
      if (args.tile.rows_at_once) {
        sm90::TxBarrier::arrive_and_expect_tx(&shared.full[stage], args.tile.boxes * kRowsBox);
        cute::SM90_TMA_LOAD_3D::copy(&args.x, &shared.full[stage], kHint, to, 0, 0, box);
        return;
      }
      sm90::TxBarrier::arrive_and_expect_tx(&shared.full[stage], boxes * args.rows * kBoxRow);
      for (int i = 0; i < boxes; ++i) {
        cute::SM90_TMA_LOAD_2D::copy(&args.x, &shared.full[stage], kHint, to + i * kRowsBox,
                                     (box + i) * 64, 0);
      }
    });
  }

  /// The warp that brings the rows finds out beforehand where each row's keys go.
  __device__ void find_pages() const {
    const GemmAppend& append = args.append;
    constexpr int kTokens = static_cast<int>(kPageTokens);
    const int count = rows();
    const int sequences = append.counts == nullptr ? append.num_sequences : append.counts[1];
    const int num_kv_heads = append.columns / append.head_dim;
    for (int row = 0; row < count; ++row) {
      const int sequence =
          warp_search(sequences, row, [&](int b) { return append.cu_seqlens[b]; });
      if (static_cast<int>(threadIdx.x) % 32 != row % 32) continue;
      const int position =
          append.kv_lens[sequence] - append.cu_seqlens[sequence + 1] + row;
      const int64_t page =
          append.table[static_cast<int64_t>(sequence) * append.table_stride + position / kTokens];
      shared.page_row[row] = (page * num_kv_heads * kTokens + position % kTokens) * append.head_dim;
    }
  }

  /// A lane's part of a tile: features lane / 4 and lane / 4 + 8 of its warp's sixteen, and of every
  /// eight rows those of lane % 4 * 2 and the next. With a gate the second feature is what the first
  /// one gates.
  struct Place {
    int feature[2];  // columns of the output
    bool exists[2];
    float bias[2];
    float frequency[2];
  };

  __device__ Place place_of(int tile) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int first = static_cast<int>(threadIdx.x) / 32 * 16;
    Place place;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int row = first + lane / 4 + h * 8;  // of the weight
      const bool in_tile = row < args.tile.features;
      if constexpr (kGated) {
        // Boxes bring eight rows of the gate, the eight that they gate, and so on.
        row = row / 32 * 32 + row / 16 % 2 * 8 + h * kGateBlock + row % 8;
      }
      row += tile * args.tile.features;
      place.exists[h] = in_tile && row < args.n;
      place.bias[h] = args.bias != nullptr && place.exists[h] ? __ldg(args.bias + row) : 0.0f;
      place.feature[h] = kGated ? row / (2 * kGateBlock) * kGateBlock + row % kGateBlock : row;
      place.frequency[h] = 0;
      if (args.rotation.positions != nullptr && row < args.rotation.columns) {
        const int in_head = row % args.rotation.head_dim;
        if (in_head < args.rotation.dims) {
          place.frequency[h] = __ldg(args.rotation.frequencies + in_head / 2);
        }
      }
    }
    return place;
  }

  __device__ static int row_of(int block, int e) {
    return block * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + e;
  }

  /// The residual of this lane's part, asked for before the products.
  __device__ void load_residual(T (&residual)[2][kRowBlocks][2], const Place& place,
                                int count) const {
    if (args.residual == nullptr) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int row = row_of(r, e);
          if (place.exists[h] && row < count) {
            residual[h][r][e] =
                static_cast<const T*>(args.residual)[row * args.ldr + place.feature[h]];
          }
        }
      }
    }
  }

  __device__ void store(int row, int column, float value) const {
    const T rounded = Element<T>::from(value);
    static_cast<T*>(args.out)[row * args.ldo + column] = rounded;
    const GemmAppend& append = args.append;
    const int at = column - append.first;
    if (append.keys == nullptr || at < 0 || at >= 2 * append.columns) return;
    const int of_head = at % append.columns;
    T* pages = static_cast<T*>(at < append.columns ? append.keys : append.values);
    pages[shared.page_row[row] +
          static_cast<int64_t>(of_head / append.head_dim) * kPageTokens * append.head_dim +
          of_head % append.head_dim] = rounded;
  }

  template <class Accumulators>
  __device__ void finish(const Accumulators& acc, const Place& place,
                         const T (&residual)[2][kRowBlocks][2], int count) const {
    with_activation(args.activation, [&](auto function) {
#pragma unroll
      for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int row = row_of(r, e);
          float value[2] = {acc(4 * r + e) + place.bias[0], acc(4 * r + 2 + e) + place.bias[1]};
          if constexpr (kGated) {
            value[0] = function(value[0]) * value[1];
          } else {
            value[0] = function(value[0]);
            value[1] = function(value[1]);
          }
          if (args.rotation.positions != nullptr) {
            const float position = row < count ? args.rotation.positions[row] : 0.0f;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              // The other column of the pair is four lanes away.
              float mine = value[h];
              float other = __shfl_xor_sync(kFullWarp, mine, 4);
              const float2 angle = cos_sin(position, place.frequency[h]);
              if (place.feature[h] % 2 == 0) {
                rotate(mine, other, angle);
                if (place.frequency[h] != 0) value[h] = mine;
              } else {
                rotate(other, mine, angle);
                if (place.frequency[h] != 0) value[h] = mine;
              }
            }
          }
          if (row >= count) continue;
#pragma unroll
          for (int h = 0; h < (kGated ? 1 : 2); ++h) {
            if (!place.exists[h]) continue;
            if (args.residual != nullptr) value[h] += to_float(residual[h][r][e]);
            store(row, place.feature[h], value[h]);
          }
        }
      }
    });
  }

  /// A warpgroup has 64 features of every tile.
  __device__ void consume() const {
    using namespace cute;
    const int warpgroup = sm90::uniform(static_cast<int>(threadIdx.x) / 128);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int boxes = boxes_k();
    const int count = rows();
    const int bytes = stage_bytes();
    Place place = place_of(static_cast<int>(blockIdx.x));
    wait_for_previous_kernel();
    Mma mma;
    const auto slice = mma.get_slice(threadIdx.x % 128);
    int stage = 0;
    uint32_t phase = 0;
    bool pages_known = args.append.keys == nullptr;
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles();
         tile += static_cast<int>(gridDim.x)) {
      if (tile != static_cast<int>(blockIdx.x)) place = place_of(tile);
      T residual[2][kRowBlocks][2];
      load_residual(residual, place, count);
      auto acc = partition_fragment_C(Mma{}, Shape<_64, Int<kRows>>{});
      mma.accumulate_ = GMMA::ScaleOut::Zero;
      int last = -1;
      for (int box = 0; box < boxes; box += args.tile.boxes) {
        sm90::Barrier::wait(&shared.full[stage], phase);
        const unsigned char* weight =
            ring + stage * bytes + warpgroup * 64 * kBoxRow;
        const unsigned char* x = ring + stage * bytes + args.tile.boxes * weight_box();
        warpgroup_fence_operand(acc);
        warpgroup_arrive();
        const int end = min(args.tile.boxes, boxes - box);
        for (int i = 0; i < end; ++i) {
          const Tensor sa = make_tensor(
              make_smem_ptr(reinterpret_cast<const Operand*>(weight + i * weight_box())),
              BoxLayout<64>{});
          const Tensor sb =
              make_tensor(make_smem_ptr(reinterpret_cast<const Operand*>(x + i * kRowsBox)),
                          BoxLayout<kRows>{});
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
        if (last >= 0) {
          warpgroup_wait<1>();
          if (lane == 0) sm90::Barrier::arrive(&shared.empty[last]);
        }
        last = stage;
        if (++stage == args.tile.stages) {
          stage = 0;
          phase ^= 1;
        }
      }
      warpgroup_wait<0>();
      if (lane == 0) sm90::Barrier::arrive(&shared.empty[last]);
      if (!pages_known) {
        cutlass::arch::NamedBarrier::sync(blockDim.x - 32, kPagesKnown);
        pages_known = true;
      }
      finish(acc, place, residual, count);
    }
  }
};

/// One or two warpgroups of consumers, a warp that brings the weight, one that brings the rows.
template <class T, int kRowBlocks, bool kGated>
__global__ void __launch_bounds__(320) gemm_few_kernel(const __grid_constant__ GemmFewArgs args) {
  extern __shared__ __align__(1024) unsigned char ring[];
  __shared__ GemmFewShared shared;
  const GemmFew<T, kRowBlocks, kGated> work{args, shared, ring};
  const int consumers = static_cast<int>(blockDim.x) / 32 - 2;
  if (threadIdx.x == 0) {
    for (int i = 0; i < args.tile.stages; ++i) {
      sm90::TxBarrier::init(&shared.full[i], 2);
      sm90::Barrier::init(&shared.empty[i], consumers);
    }
    cutlass::arch::fence_barrier_init();
    cute::prefetch_tma_descriptor(&args.weight);
    cute::prefetch_tma_descriptor(&args.x);
  }
  __syncthreads();
  const int warp = sm90::uniform(static_cast<int>(threadIdx.x) / 32);
  if (warp < consumers) return work.consume();
  if (warp == consumers) {
    if (cute::elect_one_sync()) work.bring_weight();
    return;
  }
  if (args.append.keys != nullptr) {
    work.find_pages();
    cutlass::arch::NamedBarrier::arrive(blockDim.x - 32, work.kPagesKnown);
  }
  if (cute::elect_one_sync()) work.bring_rows();
}

}  // namespace packhorse::cuda
