// Epilogue of the Hopper GEMMs: bias, activation, residual, 16-bit store, one warp at a time.
//
// CUTLASS's TMA epilogue moves a 64 x 32 piece per step and synchronises a warpgroup three times in
// each, which takes longer than a whole k = 768 mainloop. Here every warp works alone: it reads its
// accumulators (wgmma's layout: 16 rows per warp), adds bias from L1/L2, writes 16 x 64 results to
// two shared buffers of its own (stmatrix, swizzled) and has TMA store them, never waiting for
// another warp. Columns and rows past the end are clipped by the tensor map.
#pragma once

#include <cutlass/numeric_conversion.h>

#include <cute/tensor.hpp>

#include "cuda/epilogue.cuh"
#include "cuda/gemm.h"

namespace packhorse::cuda {

template <class Element, int tile_m, int tile_n, bool has_residual>
class WarpEpilogueOp {
 public:
  using ElementC = Element;
  using ElementD = Element;
  using StrideC = cute::Stride<int64_t, cute::_1, int64_t>;
  using StrideD = StrideC;

  // Columns of one step: fewer where accumulators and residual leave few registers.
  static constexpr int kColumns = tile_n % 64 != 0 || tile_n > 128 || has_residual ? 32 : 64;
  static constexpr int kRows = 16;
  static constexpr int kValues = kRows * kColumns / 32;  // of one thread in a step
  static constexpr int kGroups = kColumns / 8;
  static constexpr int kBlocks = tile_m / 64;  // wgmma blocks of a warpgroup, one above the other
  static constexpr int kSteps = tile_n / kColumns * kBlocks;
  static constexpr int kWarps = 8;
  using Atom = std::conditional_t<kColumns == 64, cute::GMMA::Layout_K_SW128_Atom<Element>,
                                  cute::GMMA::Layout_K_SW64_Atom<Element>>;
  using BufferLayout =
      decltype(cute::tile_to_shape(Atom{}, cute::Shape<cute::Int<kRows>, cute::Int<kColumns>>{}));
  using Store = decltype(cute::make_tma_copy(
      cute::SM90_TMA_STORE{},
      cute::make_tensor(cute::make_gmem_ptr(static_cast<Element*>(nullptr)), cute::make_shape(0, 0),
                        cute::make_stride(int64_t{0}, cute::_1{})),
      BufferLayout{}));

  struct SharedStorage {
    alignas(1024) Element buffers[kWarps][2][kRows * kColumns];
  };
  struct Arguments {
    const float* bias;
    Activation activation;
    const Element* residual;
    int64_t ldr;
    Element* out;
    int64_t ldo;
  };
  struct Params {
    const float* bias;
    Activation activation;
    const Element* residual;
    int64_t ldr;
    Store store;
  };

  template <class Problem>
  static Params to_underlying_arguments(const Problem& problem, const Arguments& args, void*) {
    const auto out =
        cute::make_tensor(cute::make_gmem_ptr(args.out),
                          cute::make_shape(cute::get<0>(problem), cute::get<1>(problem)),
                          cute::make_stride(args.ldo, cute::_1{}));
    return {args.bias, args.activation, args.residual, args.ldr,
            cute::make_tma_copy(cute::SM90_TMA_STORE{}, out, BufferLayout{})};
  }
  template <class Problem>
  static size_t get_workspace_size(const Problem&, const Arguments&) {
    return 0;
  }

  CUTLASS_DEVICE explicit WarpEpilogueOp(const Params& params) : params_(params) {}
  /// Shared memory must outlive the stores that read it.
  CUTLASS_DEVICE ~WarpEpilogueOp() { cute::tma_store_wait<0>(); }

  /// Called by CUTLASS's adapter with one finished tile of the calling warpgroup.
  template <class Problem, class Tile, class Coord, class Accumulators, class Mma, class Residue>
  CUTLASS_DEVICE void operator()(Problem problem, Tile, Coord coord,
                                 const Accumulators& accumulators, Mma, Residue, int thread,
                                 char* shared) {
    static_assert(decltype(cute::size(accumulators))::value == kSteps * kValues);
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32 % kWarps;  // warps 4 ... 11 of the block are consumers
    Element* buffers = reinterpret_cast<SharedStorage*>(shared)->buffers[warp][0];
    const int rows = cute::get<0>(problem);
    const int columns = cute::get<1>(problem);
    const int tile_row = cute::get<0>(coord) * tile_m + thread / 32 * kRows;
    const int tile_column = cute::get<1>(coord) * tile_n;
    // Step s covers 16 rows from row_of(s) and kColumns columns from column_of(s) on; of these a
    // thread holds rows lane / 4 + {0, 8} and columns 8 j + lane % 4 * 2 + {0, 1}.
    auto row_of = [&](int step) { return tile_row + step % kBlocks * 64; };
    auto column_of = [&](int step) { return tile_column + step / kBlocks * kColumns; };

    // The whole tile's residual at once: its latency shows once, not once a step.
    uint32_t residual[has_residual ? kSteps : 1][kGroups][2];
    if constexpr (has_residual) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int j = 0; j < kGroups; ++j) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int row = row_of(step) + lane / 4 + 8 * half;
            const int column = column_of(step) + lane % 4 * 2 + 8 * j;
            residual[step][j][half] = 0;
            if (row < rows && column < columns)
              residual[step][j][half] =
                  *reinterpret_cast<const uint32_t*>(params_.residual + row * params_.ldr + column);
          }
        }
      }
    }
    float2 bias[kGroups] = {};
    auto load_bias = [&](int step) {
      if (params_.bias == nullptr) return;
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const int column = column_of(step) + lane % 4 * 2 + 8 * j;
        if (column < columns)
          bias[j] = __ldg(reinterpret_cast<const float2*>(params_.bias + column));
      }
    };
    load_bias(0);

    // A real loop: unrolled, a GELU tile is 30 KB of straight-line code, and fetching instructions
    // takes longer than executing them. Only the choice of accumulators is spelled out per step.
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      float values[kValues];
      uint32_t added[kGroups][2];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        if (s == step) {
#pragma unroll
          for (int i = 0; i < kValues; ++i) {
            values[i] = accumulators(s % kBlocks * (tile_n / 2) + s / kBlocks * kValues + i) +
                        (i % 2 == 0 ? bias[i / 4].x : bias[i / 4].y);
            if (has_residual && i % 2 == 0) added[i / 4][i / 2 % 2] = residual[s][i / 4][i / 2 % 2];
          }
          asm volatile("");  // keeps this a branch: selecting would take kSteps times as long
        }
      }
      if (step + 1 < kSteps) load_bias(step + 1);
      activate<kValues>(values, params_.activation);
      if constexpr (has_residual) {
        cutlass::NumericArrayConverter<float, Element, 2> widen;
#pragma unroll
        for (int i = 0; i < kValues; i += 2) {
          const auto pair =
              widen(reinterpret_cast<const cutlass::Array<Element, 2>&>(added[i / 4][i / 2 % 2]));
          values[i] += pair[0];
          values[i + 1] += pair[1];
        }
      }

      // The buffer was last read by the store before the previous one.
      Element* buffer = buffers + (stores_++ % 2) * (kRows * kColumns);
      if (lane == 0) cute::tma_store_wait<1>();
      __syncwarp();
      const auto target = cute::make_tensor(cute::make_smem_ptr(buffer), BufferLayout{});
      cutlass::NumericArrayConverter<Element, float, 2> narrow;
#pragma unroll
      for (int i = 0; i < kValues; i += 8) {
        uint32_t packed[4];
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const auto pair =
              narrow(reinterpret_cast<const cutlass::Array<float, 2>&>(values[i + 2 * q]));
          packed[q] = reinterpret_cast<const uint32_t&>(pair);
        }
        Element* address = &target(lane % 16, i * 2 + lane / 16 * 8);
        cute::SM90_U32x4_STSM_N::copy(packed[0], packed[1], packed[2], packed[3],
                                      *reinterpret_cast<cute::uint128_t*>(address));
      }
      cute::tma_store_fence();
      __syncwarp();
      if (lane == 0) {
        cute::SM90_TMA_STORE_2D::copy(params_.store.get_tma_descriptor(), buffer, column_of(step),
                                      row_of(step));
        cute::tma_store_arrive();
      }
    }
  }

 private:
  const Params& params_;
  int stores_ = 0;
};

/// With the plumbing that CUTLASS's kernels expect of an epilogue that loads nothing ahead.
template <class Element, int tile_m, int tile_n, bool has_residual>
class WarpEpilogue : public cutlass::epilogue::collective::detail::Sm90TmaWarpSpecializedAdapter<
                         WarpEpilogueOp<Element, tile_m, tile_n, has_residual>> {
  using Base = cutlass::epilogue::collective::detail::Sm90TmaWarpSpecializedAdapter<
      WarpEpilogueOp<Element, tile_m, tile_n, has_residual>>;

 public:
  using Base::Base;
  CUTLASS_DEVICE static void prefetch_tma_descriptors(const typename Base::Params& params) {
    cute::prefetch_tma_descriptor(params.store.get_tma_descriptor());
  }
};

}  // namespace packhorse::cuda
