// Writes the numbers that a weight in groups stands for to memory, row by row.
#include <cuda_fp16.h>

#include "cuda/gemm/groups_dispatch.h"
#include "cuda/gemm/groups_operands.cuh"
#include "cuda/gemm/groups_unpacked.h"
#include "cuda/launch.cuh"

namespace packhorse::cuda {
namespace {

struct UnpackGroupsArgs {
  const unsigned char* weight;  // packed, from the first strip on
  __half* out;                  // [rows, k]
  int32_t rows, k;
  GroupsLayout layout;
};

constexpr int kWarps = 8;
// Elements from one row to the next in shared memory: a block and 8 more, which put what a warp
// writes at once into different banks.
constexpr int kPitch = kGroupsBlock + 8;

/// A warp has a block of a strip: 16 rows of 128 numbers. They come as operands of tensor cores, in
/// pairs that are spread over the rows, and so go through shared memory.
template <int kBits, bool kMinima, int kGroupSteps>
__global__ void __launch_bounds__(32 * kWarps)
    unpack_groups_kernel(const __grid_constant__ UnpackGroupsArgs args) {
  __shared__ __align__(16) __half shared[kWarps][kGroupsStrip * kPitch];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t index = int64_t{blockIdx.x} * kWarps + warp;
  const auto strip = static_cast<int>(index / args.layout.blocks);
  if (strip * kGroupsStrip >= args.rows) return wait_for_previous_kernel();
  const int block = static_cast<int>(index - int64_t{strip} * args.layout.blocks);
  uint32_t operands[kGroupsSteps][4];
  groups_operands<kBits, kMinima, kGroupSteps, 0>(
      operands, args.weight + index * args.layout.block_bytes, args.layout);
  __half* const numbers = shared[warp];
#pragma unroll
  for (int step = 0; step < kGroupsSteps; ++step) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = lane / 4 + r % 2 * 8;
      const int column = step * 16 + lane % 4 * 2 + r / 2 * 8;
      *reinterpret_cast<uint32_t*>(numbers + row * kPitch + column) = operands[step][r];
    }
  }
  __syncwarp();
  // Kernels ahead may still read what lies where these numbers go.
  wait_for_previous_kernel();
  constexpr int kVector = 8;                         // numbers of 16 bytes
  constexpr int kRowLanes = kGroupsBlock / kVector;  // that write a row
  const int column = block * kGroupsBlock + lane % kRowLanes * kVector;
  if (column >= args.k) return;
#pragma unroll
  for (int i = 0; i < kGroupsStrip; i += 32 / kRowLanes) {
    const int in_strip = i + lane / kRowLanes;
    const int row = strip * kGroupsStrip + in_strip;
    if (row >= args.rows) return;
    *reinterpret_cast<uint4*>(args.out + int64_t{row} * args.k + column) =
        *reinterpret_cast<const uint4*>(numbers + in_strip * kPitch + lane % kRowLanes * kVector);
  }
}

template <int kBits>
void launch_bits(const WeightGroups& groups, const UnpackGroupsArgs& args, cudaStream_t stream) {
  dispatch_groups<kBits>(groups, [&]<bool kMinima, int kGroupSteps>() {
    const int64_t strips = (args.rows + kGroupsStrip - 1) / kGroupsStrip;
    const int64_t blocks = (strips * args.layout.blocks + kWarps - 1) / kWarps;
    launch_kernel(unpack_groups_kernel<kBits, kMinima, kGroupSteps>,
                  dim3(static_cast<unsigned>(blocks)), 32 * kWarps, 0, stream, args);
  });
}

}  // namespace

void launch_unpack_groups(const GemmParams& params, int32_t first, int32_t features, void* out,
                          cudaStream_t stream) {
  UnpackGroupsArgs args{};
  args.layout = groups_layout(params.n, params.k, params.groups);
  args.weight = static_cast<const unsigned char*>(params.weight) +
                int64_t{first / kGroupsStrip} * args.layout.blocks * args.layout.block_bytes;
  args.out = static_cast<__half*>(out);
  args.rows = features;
  args.k = params.k;
  params.groups.bits == 4 ? launch_bits<4>(params.groups, args, stream)
                          : launch_bits<8>(params.groups, args, stream);
}

}  // namespace packhorse::cuda
