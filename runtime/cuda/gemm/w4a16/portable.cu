// Products with weights in groups, for compute capability 8.0 and later. A warp has a strip of 16
// output features and goes over the whole sum, part after part; cp.async copies the rows to shared
// memory, and the packed weight is read from global memory. Sums are formed in the parts and the
// order of skinny_kernel.cuh.
#include "cuda/common/launch.cuh"
#include "cuda/common/mma_sm80.cuh"
#include "cuda/device/check.h"
#include "cuda/gemm/w4a16/dispatch.h"
#include "cuda/gemm/w4a16/output.cuh"
#include "cuda/gemm/w4a16/values.cuh"

namespace packhorse::cuda {
namespace {

struct GemmW4a16Args {
  const unsigned char* weight;  // packed
  const __half* x;
  int64_t ldx;
  W4a16Output output;
  const int32_t* row_count;
  int32_t rows, k;
  W4a16Layout layout;
  W4a16Split split;
};

template <int kBits, bool kMinima, int kGroupSteps>
struct GemmW4a16 {
  static constexpr int kRows = 64;
  static constexpr int kStrips = 4;
  static constexpr int kThreads = 32 * kStrips;
  static constexpr int kChunkSteps = 16 / kBits;
  static constexpr int kScaleWords = kMinima ? 2 : 1;
  static constexpr int kSumPitch = kStrips * kW4a16Strip + 4;
  union Shared {
    __half x[2][kRows * kPitch<kW4a16Block>];
    float sums[kRows * kSumPitch];
  };

  const GemmW4a16Args& args;
  Shared& shared;

  /// acc += the products of the packed block at `weight` and its columns of the rows.
  __device__ void multiply(float (&acc)[kRows / 8][4], const __half* x,
                           const unsigned char* weight) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const unsigned char* const scales_at = weight + lane / 4 * (4 * kScaleWords);
    const unsigned char* const values_at = weight + args.layout.header_bytes + lane * 16;
    W4a16Scales scales{};
    uint32_t values[4] = {};
#pragma unroll
    for (int step = 0; step < kW4a16Steps; ++step) {
      if (step % kGroupSteps == 0) {
        const int row = step * args.layout.rows / kW4a16Steps;
        const auto* entry = reinterpret_cast<const uint32_t*>(scales_at + row * (32 * kScaleWords));
        const uint32_t words[2] = {__ldg(entry), __ldg(entry + kScaleWords - 1)};
        scales = w4a16_scales<kMinima>(words);
      }
      if (step % kChunkSteps == 0) {
        const uint4 bits =
            __ldg(reinterpret_cast<const uint4*>(values_at + step / kChunkSteps * kW4a16Chunk));
        values[0] = bits.x;
        values[1] = bits.y;
        values[2] = bits.z;
        values[3] = bits.w;
      }
      Fragment left;
      unpack_groups<kBits, kMinima>(values + step % kChunkSteps * (kBits / 4), scales, left.x);
#pragma unroll
      for (int t = 0; t < kRows / 8; t += 2) {
        const Fragment right = load_b<kW4a16Block>(x, t * 8, step * 16);
        mma<__half>(acc[t], left, right.x[0], right.x[1]);
        mma<__half>(acc[t + 1], left, right.x[2], right.x[3]);
      }
    }
  }

  __device__ void run() const {
    const int count = args.row_count == nullptr ? args.rows : min(args.rows, *args.row_count);
    const int first_row = static_cast<int>(blockIdx.y) * kRows;
    if (first_row >= count) return;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int first_strip = static_cast<int>(blockIdx.x) * kStrips;
    const bool has_strip = first_strip + warp < args.layout.strips;
    const unsigned char* weight = args.weight + static_cast<int64_t>(first_strip + warp) *
                                                    args.layout.blocks * args.layout.block_bytes;
    const auto bring = [&](int block) {
      if (block < args.layout.blocks) {
        const int column = block * kW4a16Block;
        copy_tile_async<kRows, kW4a16Block, kThreads>(
            shared.x[block % 2], args.x + first_row * args.ldx + column, args.ldx,
            args.rows - first_row, args.k - column);
      }
      cute::cp_async_fence();
    };
    float total[kRows / 8][4];
    float acc[kRows / 8][4] = {};
    bring(0);
    for (int block = 0; block < args.layout.blocks; ++block) {
      bring(block + 1);
      cute::cp_async_wait<1>();
      __syncthreads();
      if (has_strip) multiply(acc, shared.x[block % 2], weight);
      weight += args.layout.block_bytes;
      const bool ends = (block + 1) % args.split.blocks == 0 || block + 1 == args.layout.blocks;
      if (ends) {
#pragma unroll
        for (int t = 0; t < kRows / 8; ++t) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            total[t][i] = block < args.split.blocks ? acc[t][i] : total[t][i] + acc[t][i];
            acc[t][i] = 0;
          }
        }
      }
      __syncthreads();  // the rows have been read
    }
    cute::cp_async_wait<0>();
#pragma unroll
    for (int t = 0; t < kRows / 8; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = t * 8 + lane % 4 * 2 + i % 2;
        shared.sums[row * kSumPitch + warp * kW4a16Strip + lane / 4 + i / 2 * 8] = total[t][i];
      }
    }
    __syncthreads();
    constexpr int kPairs = kStrips * kW4a16Strip / 2;
    const int first = first_strip * kW4a16Strip;
    with_activation(args.output.activation, [&](auto function) {
      for (int at = static_cast<int>(threadIdx.x); at < min(kRows, count - first_row) * kPairs;
           at += kThreads) {
        const int row = at / kPairs;
        const int feature = first + at % kPairs * 2;
        if (feature >= args.output.n) continue;
        finish_groups(args.output, first_row + row, feature, function, [&](int of) {
          return *reinterpret_cast<const float2*>(shared.sums + row * kSumPitch + of - first);
        });
      }
    });
  }
};

template <int kBits, bool kMinima, int kGroupSteps>
__global__ void __launch_bounds__(GemmW4a16<kBits, kMinima, kGroupSteps>::kThreads)
    gemm_w4a16_kernel(const __grid_constant__ GemmW4a16Args args) {
  using Gemm = GemmW4a16<kBits, kMinima, kGroupSteps>;
  __shared__ __align__(16) typename Gemm::Shared shared;
  Gemm{args, shared}.run();
}

template <int kBits>
void launch_bits(const GemmParams& p, const GemmW4a16Args& args, const KernelStream& stream) {
  dispatch_groups<kBits>(p.groups, [&]<bool kMinima, int kGroupSteps>() {
    using Gemm = GemmW4a16<kBits, kMinima, kGroupSteps>;
    const dim3 grid(block_count(args.layout.strips, Gemm::kStrips),
                    block_count(p.rows, Gemm::kRows));
    auto* kernel = gemm_w4a16_kernel<kBits, kMinima, kGroupSteps>;
    kernel<<<grid, Gemm::kThreads, 0, stream>>>(args);
    CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace

void launch_gemm_w4a16_portable(const GemmParams& p, const KernelStream& stream) {
  if (p.rows == 0) return;
  GemmW4a16Args args{};
  args.weight = static_cast<const unsigned char*>(p.weight);
  args.x = static_cast<const __half*>(p.a);
  args.ldx = p.lda;
  args.output = w4a16_output(p);
  args.row_count = p.row_count;
  args.rows = p.rows;
  args.k = p.k;
  args.layout = w4a16_layout(p.n, p.k, p.groups);
  args.split = w4a16_split(p.n, p.k);
  p.groups.bits == 4 ? launch_bits<4>(p, args, stream) : launch_bits<8>(p, args, stream);
}

}  // namespace packhorse::cuda
