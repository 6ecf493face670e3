// A dense layer whose sums have several parts (gemm/split_k.h). With up to 64 rows its time is that
// of reading the weight once, if all SMs read equal shares of it and the rows, which every tile
// needs, are not read too often. So each cluster of blocks has one tile of equally many columns,
// and each of its blocks forms one part of the sums, for which it reads only its part of k of the
// rows. With more rows, tiles of 128 rows keep all SMs busy where kernels that form one part after
// the other would need smaller ones, which read more.
//
// Each block multiplies 64 or 128 rows by the columns of the tile with wgmma, over a ring of stages
// that two lanes fill by TMA (the Tensor Memory Accelerator). The weight is copied from the moment
// the block starts, while the kernel before still runs. Then each block finishes a share of the
// tile's columns: it sends its sums of the other columns to the shared memory of their blocks, adds
// those received for its own in ascending order of the parts, and applies the epilogue.
// gemm/sm90/consumer.cuh makes the same additions, one part after the other, so a row's bits are
// the same.
#pragma once

#include <cutlass/numeric_types.h>

#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>
#include <type_traits>

#include "core/math.h"
#include "cuda/common/activations.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/pipeline_sm90.cuh"
#include "cuda/common/rotation.cuh"
#include "cuda/common/vector.cuh"
#include "cuda/gemm/splitk/memory.cuh"
#include "cuda/gemm/splitk/splitk_cluster.h"

namespace packhorse::cuda {

struct GemmSplitkClusterArgs {
  /// Boxes of 64 elements of k and all features of a tile. One copy brings all boxes of a stage:
  /// the last dimensions of the map count blocks of k and parts.
  CUtensorMap weight;
  /// Boxes of 64 elements of k and all rows of x; the map's last dimensions are those of the
  /// weight's.
  CUtensorMap x;
  /// Boxes of 64 elements of k and kRowsPart rows, for a tile of rows that is not full: TMA takes
  /// longer for rows past the end, which it fills with zeros, than for rows that exist.
  CUtensorMap x_part;
  const float* bias;  // [n] or null
  const void* residual;
  int64_t ldr;
  void* out;
  int64_t ldo;
  const int32_t* row_count;  // null: the number of rows is `rows`
  int32_t rows, n;
  int32_t boxes;  // boxes of a part
  GemmSplitkClusterTile tile;
  Activation activation;
  GemmRotation rotation;
};

/// Shared memory of fixed size, beside the stages.
struct GemmSplitkClusterShared {
  uint64_t full[kMostClusterStages];
  uint64_t empty[kMostClusterStages];
  uint64_t sums[kTallRows / 16];  // for the sums that each warp receives
};

/// Code of a block's warps. kColumns: GemmSplitkClusterTile::columns. kGroups: warpgroups that
/// multiply, each 64 of the block's rows. kOwnParts: parts that a block forms, one after the other.
template <class T, int kColumns, int kGroups, int kOwnParts>
struct GemmSplitkCluster {
  using Operand =
      std::conditional_t<std::is_same_v<T, __half>, cutlass::half_t, cutlass::bfloat16_t>;
  using Pair = typename Element<T>::Pair;
  static constexpr int kRows = 64;                  // rows of a warpgroup
  static constexpr int kBox = 64;                   // elements of k in a box
  static constexpr int kBoxRow = 128;               // bytes of a row of a box
  static constexpr int kConsumers = 128 * kGroups;  // threads
  // Units of eight columns are dealt to the blocks in turn; of each unit a lane has two columns of
  // two rows.
  static constexpr int kUnits = kColumns / 8;
  static constexpr int kSlots =
      ceil_div(kUnits, 2);  // most units of a block, where there are two blocks or more

  using Mma = decltype(cute::make_tiled_mma(
      cute::SM90::GMMA::ss_op_selector<Operand, Operand, float,
                                       cute::Shape<cute::_64, cute::Int<kColumns>, cute::Int<kBox>>,
                                       cute::SM90::GMMA::Major::K, cute::SM90::GMMA::Major::K>()));
  template <int rows>
  using BoxLayout = decltype(cute::tile_to_shape(cute::SM90::GMMA::Layout_K_SW128_Atom<Operand>{},
                                                 cute::Shape<cute::Int<rows>, cute::Int<kBox>>{}));

  const GemmSplitkClusterArgs& args;
  GemmSplitkClusterShared& shared;
  unsigned char* ring;
  const int rank = static_cast<int>(cluster_rank());
  /// Blocks of rows are numbered first, so that clusters that run together share a weight's rows.
  const int tile = static_cast<int>(cluster_number()) / args.tile.row_blocks;
  const int first_row =
      static_cast<int>(cluster_number()) % args.tile.row_blocks * (kRows * kGroups);
  /// Rows of this block that exist; may be less than 1.
  const int count =
      (args.row_count == nullptr ? args.rows : min(args.rows, __ldg(args.row_count))) - first_row;
  const int blocks = args.tile.blocks;
  const int terms = args.tile.terms();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = sm90::uniform(static_cast<int>(threadIdx.x) / 32);
  /// Units of the tile that exist, and those that this block finishes.
  const int units = min(args.tile.features, args.n - tile * args.tile.features) / 8;
  const int own_units = ceil_div(units - rank, blocks);

  /// Returns the shared address of the sums of slot `slot` for this warp's rows and this lane:
  /// kSums bytes of each term.
  static constexpr int kSums = 512;  // 16 bytes of each lane
  __device__ uint32_t sums_at(int slot) const {
    const int place = (warp * args.tile.slots + slot) * terms;
    return shared_address(ring + args.tile.sums_at) + place * kSums + lane * 16;
  }

  /// Initialises the barriers of this block. A warp's barrier in `sums` expects the bytes of all
  /// sums that it receives.
  __device__ void set_up() const {
    for (int i = 0; i < args.tile.stages; ++i) {
      sm90::TxBarrier::init(&shared.full[i], 2);  // for the weight and for the rows
      sm90::Barrier::init(&shared.empty[i], kConsumers / 32);
    }
    for (int i = 0; i < kConsumers / 32; ++i) sm90::TxBarrier::init(&shared.sums[i], 1);
    cutlass::arch::fence_barrier_init();
    for (int i = 0; i < kConsumers / 32; ++i) {
      sm90::TxBarrier::arrive_and_expect_tx(&shared.sums[i], own_units * terms * kSums);
    }
  }

  /// Goes through the stages as a producer: one lane copies the weight, another the rows.
  template <class Copy>
  __device__ void bring(int bytes, Copy copy) const {
    if (count <= 0) return;
    int stage = 0;
    uint32_t phase = 0;
    bool used = false;  // the ring has been filled once
    for (int own = 0; own < kOwnParts; ++own) {
      for (int step = 0; step < args.tile.steps; ++step) {
        if (used) sm90::Barrier::wait(&shared.empty[stage], phase ^ 1);
        sm90::TxBarrier::arrive_and_expect_tx(&shared.full[stage], bytes);
        copy(&shared.full[stage], ring + stage * args.tile.stage_bytes(), step * args.tile.boxes,
             rank * kOwnParts + own);
        if (++stage == args.tile.stages) {
          stage = 0;
          phase ^= 1;
          used = true;
        }
      }
    }
  }
  __device__ void bring_weight() const {
    const int rows_bytes = args.tile.boxes * args.tile.row_box * kBoxRow;
    const int feature = tile * args.tile.features;
    constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
    bring(args.tile.boxes * args.tile.features * kBoxRow,
          [&](uint64_t* full, unsigned char* to, int box, int part) {
            cute::SM90_TMA_LOAD_4D::copy(&args.weight, full, kHint, to + rows_bytes, 0, feature,
                                         box, part);
          });
  }
  __device__ void bring_rows() const {
    wait_for_previous_kernel();
    let_next_kernel_start();
    constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);
    const int box_bytes = args.tile.row_box * kBoxRow;
    const int parts_here = ceil_div(args.rows - first_row, kRowsPart);
    if (parts_here * kRowsPart >= args.tile.row_box) {
      bring(args.tile.boxes * box_bytes, [&](uint64_t* full, unsigned char* to, int box, int part) {
        cute::SM90_TMA_LOAD_4D::copy(&args.x, full, kHint, to, 0, first_row, box, part);
      });
      return;
    }
    bring(args.tile.boxes * parts_here * kRowsPart * kBoxRow, [&](uint64_t* full, unsigned char* to,
                                                                  int box, int part) {
      for (int i = 0; i < args.tile.boxes; ++i) {
        for (int at = 0; at < parts_here * kRowsPart; at += kRowsPart) {
          cute::SM90_TMA_LOAD_4D::copy(&args.x_part, full, kHint, to + i * box_bytes + at * kBoxRow,
                                       0, first_row + at, box + i, part);
        }
      }
    });
  }

  /// A place in the ring of stages, as a consumer goes over it.
  struct Stage {
    int index = 0;
    uint32_t phase = 0;
  };

  /// acc = the sums of the block's next part. Rows that were not copied, and columns past the
  /// features of the tile, have arbitrary sums, which nobody reads.
  template <class Accumulators>
  __device__ void multiply(Accumulators& acc, Stage& stage) const {
    using namespace cute;
    typename GemmSplitkCluster::Mma mma;
    const auto slice = mma.get_slice(threadIdx.x % 128);
    const int group_at = warp / 4 * kRows * kBoxRow;
    const int rows_box = args.tile.row_box * kBoxRow;
    const int weight_box = args.tile.features * kBoxRow;
    int before = 0;  // the stage before
    for (int step = 0, left = args.boxes; step < args.tile.steps; ++step) {
      unsigned char* rows_at = ring + stage.index * args.tile.stage_bytes();
      unsigned char* weight_at = rows_at + args.tile.boxes * rows_box;
      sm90::Barrier::wait(&shared.full[stage.index], stage.phase);
      const int boxes = min(args.tile.boxes, left);
      for (int box = 0; box < boxes; ++box) {
        warpgroup_fence_operand(acc);
        warpgroup_arrive();
        mma.accumulate_ = step + box == 0 ? GMMA::ScaleOut::Zero : GMMA::ScaleOut::One;
        const Tensor a = slice.partition_fragment_A(make_tensor(
            make_smem_ptr(reinterpret_cast<Operand*>(rows_at + group_at)), BoxLayout<kRows>{}));
        const Tensor b = slice.partition_fragment_B(make_tensor(
            make_smem_ptr(reinterpret_cast<Operand*>(weight_at)), BoxLayout<kColumns>{}));
        CUTE_UNROLL
        for (int j = 0; j < 4; ++j) {
          cute::gemm(mma, a(_, _, j), b(_, _, j), acc);
          mma.accumulate_ = GMMA::ScaleOut::One;
        }
        warpgroup_commit_batch();
        warpgroup_fence_operand(acc);
        rows_at += rows_box;
        weight_at += weight_box;
        warpgroup_wait<1>();
        if (box == 0 && step > 0 && lane == 0) sm90::Barrier::arrive(&shared.empty[before]);
      }
      left -= boxes;
      before = stage.index;
      if (++stage.index == args.tile.stages) {
        stage.index = 0;
        stage.phase ^= 1;
      }
    }
    warpgroup_wait<0>();
    warpgroup_fence_operand(acc);
    if (kOwnParts > 1 && lane == 0) sm90::Barrier::arrive(&shared.empty[before]);
  }

  /// Operands of a lane's epilogue, for its two rows of the units that this block finishes. One
  /// warpgroup loads them before the products, to hide the latency of memory; where there are two,
  /// sums need the registers, and the operands are loaded while others' sums arrive.
  struct Place {
    float2 bias[kSlots];
    float frequency[kSlots];
    Pair residual[kSlots][2];
    float position[2];
  };

  /// The lane's first column in the unit of a slot.
  __device__ int column_of(int slot) const {
    return tile * args.tile.features + (rank + slot * blocks) * 8 + lane % 4 * 2;
  }
  /// The lane's rows in the block.
  __device__ int row_of(int h) const { return warp * 16 + lane / 4 + h * 8; }

  /// Loads the operands that no kernel before writes.
  __device__ void load_constants(Place& place) const {
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      place.bias[s] = {};
      place.frequency[s] = 0;  // leaves a pair of columns as it is
    }
    if (args.bias != nullptr) {
#pragma unroll
      for (int s = 0; s < kSlots; ++s) {
        if (s >= own_units) break;
        place.bias[s] = __ldg(reinterpret_cast<const float2*>(args.bias + column_of(s)));
      }
    }
    if (args.rotation.positions != nullptr) {
      int in_head = column_of(0) % args.rotation.head_dim;
#pragma unroll
      for (int s = 0; s < kSlots; ++s) {
        if (s >= own_units || column_of(s) >= args.rotation.columns) break;
        if (in_head < args.rotation.dims) {
          place.frequency[s] = __ldg(args.rotation.frequencies + in_head / 2);
        }
        in_head += blocks * 8;
        while (in_head >= args.rotation.head_dim) in_head -= args.rotation.head_dim;
      }
    }
  }
  __device__ void load_rows(Place& place) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = row_of(h);
      place.position[h] = 0;
      if (row >= count) continue;
      if (args.rotation.positions != nullptr) {
        place.position[h] = args.rotation.positions[first_row + row];
      }
      if (args.residual == nullptr) continue;
      const T* const from =
          static_cast<const T*>(args.residual) + (first_row + row) * args.ldr + column_of(0);
#pragma unroll
      for (int s = 0; s < kSlots; ++s) {
        if (s >= own_units) break;
        place.residual[s][h] = *reinterpret_cast<const Pair*>(from + s * blocks * 8);
      }
    }
  }

  /// Sends this warp's sums to the blocks that finish them, including this block, as a term of
  /// theirs.
  template <class Accumulators>
  __device__ void send(const Accumulators& acc, int term) const {
    const uint32_t barrier = shared_address(&shared.sums[warp]);
    uint32_t at = sums_at(0) + term * kSums;
    int to = 0;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      if (unit >= units) break;
      send_to_peer(peer_address(at, to), acc(4 * unit), acc(4 * unit + 1), acc(4 * unit + 2),
                   acc(4 * unit + 3), peer_address(barrier, to));
      if (++to == blocks) {
        to = 0;
        at += terms * kSums;
      }
    }
  }

  /// Returns the sums over all of k that belong to a slot. `from`: the first term.
  __device__ float4 add_terms(uint32_t from) const {
    float4 sums = load_shared(from);
#pragma unroll
    for (int other = 1; other < kMaxSplitK; ++other) {
      if (other >= terms) break;
      const float4 more = load_shared(from + other * kSums);
      sums.x += more.x;
      sums.y += more.y;
      sums.z += more.z;
      sums.w += more.w;
    }
    return sums;
  }

  /// Finishes this block's units of the warp's rows: bias, `function`, rotation, residual.
  template <bool kRotated, class Function>
  __device__ void finish(const Place& place, const Function& function) const {
    const uint32_t from = sums_at(0);
    T* const out = static_cast<T*>(args.out) + (first_row + row_of(0)) * args.ldo + column_of(0);
    const int64_t next_row = 8 * args.ldo;
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      if (s >= own_units) break;
      const float4 sums = add_terms(from + s * terms * kSums);
      const float2 bias = place.bias[s];
      float values[4] = {sums.x + bias.x, sums.y + bias.y, sums.z + bias.x, sums.w + bias.y};
#pragma unroll
      for (float& value : values) value = function(value);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float& a = values[2 * h];
        float& b = values[2 * h + 1];
        if (kRotated && place.frequency[s] != 0) {
          rotate(a, b, cos_sin(place.position[h], place.frequency[s]));
        }
        if (row_of(h) >= count) continue;
        if (args.residual != nullptr) {
          const float2 more = to_float2(place.residual[s][h]);
          a += more.x;
          b += more.y;
        }
        *reinterpret_cast<Pair*>(out + h * next_row + s * blocks * 8) = Element<T>::pair(a, b);
      }
    }
  }

  __device__ void consume() const {
    using namespace cute;
    constexpr bool kOperandsEarly = kGroups == 1;
    Place place;
    if (kOperandsEarly) load_constants(place);
    wait_for_cluster();  // afterwards the barriers of all blocks are initialised
    wait_for_previous_kernel();
    if (kOperandsEarly) load_rows(place);
    auto acc = partition_fragment_C(Mma{}, Shape<Int<kRows>, Int<kColumns>>{});
    auto earlier = make_fragment_like(acc);  // sums of the first of two own parts
    Stage stage;
    if (count > 0) multiply(acc, stage);
    if (kOwnParts == 2) {
#pragma unroll
      for (int i = 0; i < size(acc); ++i) earlier(i) = acc(i);
      if (count > 0) multiply(acc, stage);
    }
    if (args.tile.sums_in_stages) meet_cluster();
    if (warp * 16 >= count) return;
    if (kOwnParts == 1) {
      send(acc, rank);
    } else if (rank == 0) {
#pragma unroll
      for (int i = 0; i < size(acc); ++i) acc(i) = earlier(i) + acc(i);
      send(acc, 0);
    } else {
      send(earlier, 2 * rank - 1);
      send(acc, 2 * rank);
    }
    if (!kOperandsEarly) {
      load_constants(place);
      load_rows(place);
    }
    wait_for_peers(shared_address(&shared.sums[warp]));
    if (args.rotation.positions != nullptr) {
      finish<true>(place, [](float x) { return x; });
    } else {
      with_activation(args.activation, [&](auto function) { finish<false>(place, function); });
    }
  }
};

/// The kernel: warpgroups that multiply, a warp that copies the weight, and one that copies the
/// rows. No block ends before it has received all sums that others send to it. A warp without rows
/// receives none: the number of rows is the same in all blocks of a cluster.
template <class T, int kColumns, int kGroups, int kOwnParts>
__global__ void __launch_bounds__(cluster_threads(kGroups), kGroups == 1 ? 2 : 1)
    gemm_splitk_cluster_kernel(const __grid_constant__ GemmSplitkClusterArgs args) {
  extern __shared__ __align__(1024) unsigned char ring[];
  __shared__ GemmSplitkClusterShared shared;
  const GemmSplitkCluster<T, kColumns, kGroups, kOwnParts> work{args, shared, ring};
  if (threadIdx.x == 0) work.set_up();
  if (threadIdx.x == 32) {
    cute::prefetch_tma_descriptor(&args.weight);
    cute::prefetch_tma_descriptor(&args.x);
  }
  __syncthreads();
  arrive_at_cluster();
  if (work.warp < 4 * kGroups) return work.consume();
  if (cute::elect_one_sync()) work.warp == 4 * kGroups ? work.bring_weight() : work.bring_rows();
  __syncwarp();
  wait_for_cluster();
  if (args.tile.sums_in_stages) meet_cluster();
}

}  // namespace packhorse::cuda
