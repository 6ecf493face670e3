// A dense layer for few rows (up to 16). Its time is that of reading the weight once, which
// everything else serves: each block has its share of the weight's rows, which one warp copies by
// TMA through a ring of stages from the moment the block starts, while the kernel before still
// runs.
//
// The weight is the A operand of mma.sync and the rows of the batch are the B operand, in contrast
// to gemm/sm90/kernel.cuh, so a product has 16 columns of the output and only 8 rows. The sum over
// k is formed in the same order, 16 elements at a time, and tensor cores give the same bits by
// either instruction and with operands exchanged (tests/gpu/test_gpu_gemm_skinny.py). With few rows
// that chain of sums is what takes time beside the weight: mma.sync takes 24 cycles for a link of
// it. wgmma takes 18, but 40 in products this small, because of the descriptors of its operands.
// Where a sum has several parts (gemm/split_k.h), each is formed by another warp, and that of the
// first part adds the others.
#pragma once

#include "cuda/common/activations.cuh"
#include "cuda/common/mma_sm80.cuh"
#include "cuda/common/reduce.cuh"
#include "cuda/common/rotation.cuh"
#include "cuda/common/vector.cuh"
#include "cuda/gemm/skinny/stages.cuh"

namespace packhorse::cuda {

/// Consumers of a block: they multiply the stages that the producers fill, and finish the sums.
template <class T, int kBoxes, int kRowBlocks, bool kGated>
struct GemmSkinny : GemmSkinnyStages<kBoxes, kRowBlocks, kGated> {
  using Stages = GemmSkinnyStages<kBoxes, kRowBlocks, kGated>;
  using Stages::args;
  using Stages::kBoxRow;
  using Stages::kRowsBox;
  using Stages::ring;
  using Stages::rows;
  using Stages::shared;
  using Stages::stage_bytes;
  using Stages::tiles;
  using Stages::weight_box;

  /// A lane's part of a tile: features lane / 4 and lane / 4 + 8 of its warp's sixteen, and rows
  /// lane % 4 * 2 and the next of every eight. With a gate the second feature is the one that the
  /// first one gates.
  struct Place {
    int feature[2];  // columns of the output
    bool exists[2];
    float bias[2];
    float frequency[2];
  };

  __device__ Place place_of(int tile, int warp) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int first = warp * 16;
    Place place;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int row = first + lane / 4 + h * 8;  // row of the weight
      const bool in_tile = row < args.tile.features;
      if constexpr (kGated) {
        // A box has eight rows of the gate, the eight that they gate, and so on.
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

  /// Rows of this lane's part, two of each block of kSkinnyRows rows.
  static constexpr int kRows = 2 * kRowBlocks;
  __device__ static int row_of(int i) {
    return i / 2 * kSkinnyRows + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
  }

  /// Residual of this lane's part, loaded before the products to hide its latency.
  using Residual = T[2][kRows];
  __device__ void load_residual(Residual& residual, const Place& place, int count) const {
    if (args.residual == nullptr) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int row = row_of(i);
        if (place.exists[h] && row < count) {
          residual[h][i] = static_cast<const T*>(args.residual)[row * args.ldr + place.feature[h]];
        }
      }
    }
  }

  using Sums = float[kRowBlocks][4];

  /// Adds the other parts' sums to those of the first part, in ascending order. Returns true in
  /// warps of the first part, which then have the whole sums. With several parts a block has one
  /// tile, so the shared memory of `others` is written only once.
  __device__ bool add_parts(Sums& acc, int part, int warp) const {
    const int parts = args.tile.parts;
    if (parts == 1) return true;
    const int warps = args.tile.warps();
    auto* const others =
        reinterpret_cast<float4*>(ring + args.tile.stages * stage_bytes() + 16 * kBoxRow) +
        warp * kRowBlocks * 32 + threadIdx.x % 32;
    const int step = warps * kRowBlocks * 32;
    if (part > 0) {
#pragma unroll
      for (int block = 0; block < kRowBlocks; ++block) {
        others[(part - 1) * step + block * 32] = {acc[block][0], acc[block][1], acc[block][2],
                                                  acc[block][3]};
      }
      asm volatile("bar.arrive %0, %1;" ::"r"(1 + warp), "r"(32 * parts) : "memory");
      return false;
    }
    asm volatile("bar.sync %0, %1;" ::"r"(1 + warp), "r"(32 * parts) : "memory");
    for (int other = 0; other < parts - 1; ++other) {
#pragma unroll
      for (int block = 0; block < kRowBlocks; ++block) {
        const float4 more = others[other * step + block * 32];
        acc[block][0] += more.x;
        acc[block][1] += more.y;
        acc[block][2] += more.z;
        acc[block][3] += more.w;
      }
    }
    return true;
  }

  __device__ void finish(const Sums& acc, const Place& place, const Residual& residual,
                         int count) const {
    with_activation(args.activation, [&](auto function) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int row = row_of(i);
        const float* sums = acc[i / 2] + i % 2;
        float value[2] = {sums[0] + place.bias[0], sums[2] + place.bias[1]};
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
            // Exchanges with the lane that has the other column of the pair, four lanes away.
            float mine = value[h];
            float other = __shfl_xor_sync(kFullWarp, mine, 4);
            const float2 angle = cos_sin(position, place.frequency[h]);
            if (place.feature[h] % 2 == 0) {
              rotate(mine, other, angle);
            } else {
              rotate(other, mine, angle);
            }
            if (place.frequency[h] != 0) value[h] = mine;
          }
        }
        if (row >= count) continue;
#pragma unroll
        for (int h = 0; h < (kGated ? 1 : 2); ++h) {
          if (!place.exists[h]) continue;
          if (args.residual != nullptr) value[h] += to_float(residual[h][i]);
          static_cast<T*>(args.out)[row * args.ldo + place.feature[h]] = Element<T>::from(value[h]);
        }
      }
    });
  }

  /// Operands of a box: 16 features, all rows, 64 elements of k.
  struct Operands {
    Fragment weight[4];
    Fragment rows[2][kRowBlocks];
  };

  /// Offsets of this lane's operands in a box; ldmatrix takes a row of 16 bytes from each lane.
  struct Offsets {
    uint32_t weight[4];
    uint32_t rows[2];  // rows of the first block of kSkinnyRows
    __device__ explicit Offsets(int warp) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      const int feature = warp * 16 + lane % 16;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        weight[j] = feature * kBoxRow + ((2 * j + lane / 16) ^ (feature % 8)) * 16;
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        rows[j] = lane % 8 * kBoxRow + ((4 * j + lane / 8) ^ (lane % 8)) * 16;
      }
    }
  };

  // The main loop is bound by the latency of its instructions. It keeps 32-bit shared addresses in
  // registers, since the compiler would compute generic pointers anew from uniform registers.
  __device__ static uint32_t address_of(const void* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  }
  __device__ static Fragment fragment_at(uint32_t address) {
    Fragment f;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3])
                 : "r"(address));
    return f;
  }
  __device__ static void wait_for(uint32_t barrier, uint32_t phase) {
    asm volatile(
        "{ .reg .pred done;\n"
        "again%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again%=; }" ::"r"(barrier),
        "r"(phase)
        : "memory");
  }
  __device__ static void release(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
  }

  /// Loads step j of the four steps of a box's operands.
  __device__ static void load(Operands& to, int j, uint32_t weight, uint32_t rows,
                              const Offsets& offsets) {
    to.weight[j] = fragment_at(weight + offsets.weight[j]);
    if (j % 2 != 0) return;
#pragma unroll
    for (int block = 0; block < kRowBlocks; ++block) {
      to.rows[j / 2][block] =
          fragment_at(rows + offsets.rows[j / 2] + block * kSkinnyRows * kBoxRow);
    }
  }

  __device__ static void multiply(Sums& acc, const Operands& operands, int j) {
#pragma unroll
    for (int block = 0; block < kRowBlocks; ++block) {
      const Fragment& rows = operands.rows[j / 2][block];
      mma<T>(acc[block], operands.weight[j], rows.x[j % 2 * 2], rows.x[j % 2 * 2 + 1]);
    }
  }

  /// Addresses of a part's boxes: those of the weight, and those of the rows.
  struct PartBoxes {
    uint32_t weight, rows;
    __device__ PartBoxes operator+(uint32_t bytes) const { return {weight + bytes, rows + bytes}; }
  };

  /// Multiplies a stage. The operands of its first box are in operands[0]; those of each further
  /// box, and of the next stage's first box if there is `more`, are loaded while the box before is
  /// multiplied. before() waits for the next stage, whose operands are in operands[0] on return.
  template <class Before>
  __device__ static void multiply_stage(Sums& acc, Operands (&operands)[2], const PartBoxes& stage,
                                        const PartBoxes& next, uint32_t box_bytes,
                                        const Offsets& offsets, bool more, Before before) {
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      const bool last = box + 1 == kBoxes;
      const PartBoxes& from = last ? next : stage;
      const uint32_t at = last ? 0 : box + 1;
      const uint32_t weight = from.weight + at * box_bytes;
      const uint32_t rows = from.rows + at * kRowsBox;
      if (last) before();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (!last || more) load(operands[(box + 1) % 2], j, weight, rows, offsets);
        multiply(acc, operands[box % 2], j);
      }
    }
    if (kBoxes % 2 != 0) operands[0] = operands[1];
  }

  /// Computes 16 features of every tile, and a part of their sums, by one warp.
  __device__ void consume(int consumer) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int part = consumer / args.tile.warps();
    const int warp = consumer - part * args.tile.warps();
    const int last_tile = tiles();
    const int count = rows();
    const uint32_t bytes = stage_bytes();
    const uint32_t box_bytes = weight_box();
    const uint32_t ring_at = address_of(ring);
    const PartBoxes boxes{
        ring_at + part * kBoxes * box_bytes,
        ring_at + args.tile.parts * kBoxes * box_bytes + part * kBoxes * kRowsBox};
    const uint32_t full = address_of(shared.full);
    const uint32_t empty = address_of(shared.empty);
    const Offsets offsets(warp);
    Place place = place_of(static_cast<int>(blockIdx.x), warp);
    wait_for_previous_kernel();
    uint32_t stage = 0;
    uint32_t phase = 0;
    Operands operands[2];
    for (int tile = static_cast<int>(blockIdx.x); tile < last_tile;
         tile += static_cast<int>(gridDim.x)) {
      if (tile != static_cast<int>(blockIdx.x)) place = place_of(tile, warp);
      Residual residual;
      if (part == 0) load_residual(residual, place, count);
      Sums acc = {};
      if (tile == static_cast<int>(blockIdx.x)) {
        wait_for(full, 0);
#pragma unroll
        for (int j = 0; j < 4; ++j) load(operands[0], j, boxes.weight, boxes.rows, offsets);
      }
      const bool last_tile_here = tile + static_cast<int>(gridDim.x) >= last_tile;
      for (int i = 0; i < args.tile.steps; ++i) {
        const uint32_t here = stage;
        if (++stage == static_cast<uint32_t>(args.tile.stages)) {
          stage = 0;
          phase ^= 1;
        }
        const bool more = i + 1 < args.tile.steps || !last_tile_here;
        multiply_stage(acc, operands, boxes + here * bytes, boxes + stage * bytes, box_bytes,
                       offsets, more, [&] {
                         if (more) wait_for(full + stage * 8, phase);
                       });
        __syncwarp();
        if (lane == 0) release(empty + here * 8);
      }
      if (!add_parts(acc, part, warp)) return;
      finish(acc, place, residual, count);
    }
  }
};

/// The kernel. Its warps: one for each part of the sums of 16 features of a tile, one that copies
/// the weight, and one that copies the rows.
template <class T, int kBoxes, int kRowBlocks, bool kGated>
__global__ void __launch_bounds__(384)
    gemm_skinny_kernel(const __grid_constant__ GemmSkinnyArgs args) {
  extern __shared__ __align__(1024) unsigned char ring[];
  __shared__ GemmSkinnyShared shared;
  const GemmSkinny<T, kBoxes, kRowBlocks, kGated> work{{args, shared, ring}};
  const int consumers = static_cast<int>(blockDim.x) / 32 - 2;
  if (threadIdx.x == 0) {
    for (int i = 0; i < args.tile.stages; ++i) {
      sm90::TxBarrier::init(&shared.full[i], 2);  // for the weight and for the rows
      sm90::Barrier::init(&shared.empty[i], consumers);
    }
    cutlass::arch::fence_barrier_init();
    cute::prefetch_tma_descriptor(&args.weight);
    cute::prefetch_tma_descriptor(&args.x);
  }
  __syncthreads();
  const int warp = sm90::uniform(static_cast<int>(threadIdx.x) / 32);
  if (warp < consumers) return work.consume(warp);
  if (warp == consumers) {
    if (cute::elect_one_sync()) work.bring_weight();
    return;
  }
  if (cute::elect_one_sync()) work.bring_rows();
}

}  // namespace packhorse::cuda
