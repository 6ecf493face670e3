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

template <class Element, int tile_n, bool has_residual>
class WarpEpilogue {
 public:
  using ElementC = Element;
  using ElementD = Element;
  using StrideC = cute::Stride<int64_t, cute::_1, int64_t>;
  using StrideD = StrideC;

  static constexpr int kColumns = tile_n % 64 == 0 ? 64 : 32;  // of one step
  static constexpr int kRows = 16;
  static constexpr int kValues = kRows * kColumns / 32;  // of one thread in a step
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

  CUTLASS_DEVICE explicit WarpEpilogue(const Params& params) : params_(params) {}
  /// Shared memory must outlive the stores that read it.
  CUTLASS_DEVICE ~WarpEpilogue() { cute::tma_store_wait<0>(); }

  /// Called by CUTLASS's adapter with one finished tile.
  template <class Problem, class Tile, class Coord, class Accumulators, class Mma, class Residue>
  CUTLASS_DEVICE void operator()(Problem problem, Tile, Coord coord,
                                 const Accumulators& accumulators, Mma, Residue, int thread,
                                 char* shared) {
    constexpr int kTileM = cute::size<0>(Tile{});
    constexpr int kBlocks = kTileM / (cute::size(Mma{}) / 2);  // m64 blocks of this warpgroup
    constexpr int kSteps = tile_n / kColumns * kBlocks;
    static_assert(decltype(cute::size(accumulators))::value == kSteps * kValues);
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32 % kWarps;  // warps 4 ... 11 of the block are consumers
    auto* storage = reinterpret_cast<SharedStorage*>(shared);
    Element* buffers = storage->buffers[warp][0];
    const int rows = cute::get<0>(problem);
    const int columns = cute::get<1>(problem);
    const int tile_row = cute::get<0>(coord) * kTileM + thread / 32 * kRows;
    const int tile_column = cute::get<1>(coord) * tile_n;

    // A thread's values in a step: columns 8 j + {0, 1}, rows 0 and 8, from (row, column) on.
    auto column_of = [&](int step) {
      return tile_column + step / kBlocks * kColumns + lane % 4 * 2;
    };
    auto row_of = [&](int step) {
      return tile_row + step % kBlocks * (kTileM / kBlocks) + lane / 4;
    };

    float2 bias[kColumns / 8] = {};
    uint32_t residual[kColumns / 8][2];
    auto load_residual = [&](int step) {
      const Element* source = params_.residual + row_of(step) * params_.ldr + column_of(step);
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          residual[j][half] = 0;
          if (row_of(step) + 8 * half < rows && column_of(step) + 8 * j < columns)
            residual[j][half] =
                *reinterpret_cast<const uint32_t*>(source + 8 * half * params_.ldr + 8 * j);
        }
      }
    };
    if constexpr (has_residual) load_residual(0);

#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step % kBlocks == 0 && params_.bias != nullptr) {
#pragma unroll
        for (int j = 0; j < kColumns / 8; ++j) {
          const int column = column_of(step) + 8 * j;
          if (column < columns)
            bias[j] = __ldg(reinterpret_cast<const float2*>(params_.bias + column));
        }
      }
      float values[kValues];
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        const int block = step % kBlocks, chunk = step / kBlocks;
        values[i] = accumulators(block * (tile_n / 2) + chunk * kValues + i) +
                    (i % 2 == 0 ? bias[i / 4].x : bias[i / 4].y);
      }
      activate<kValues>(values, params_.activation);
      if constexpr (has_residual) {
        cutlass::NumericArrayConverter<float, Element, 2> widen;
#pragma unroll
        for (int i = 0; i < kValues; i += 2) {
          const auto pair = widen(
              reinterpret_cast<const cutlass::Array<Element, 2>&>(residual[i / 4][i / 2 % 2]));
          values[i] += pair[0];
          values[i + 1] += pair[1];
        }
        if (step + 1 < kSteps) load_residual(step + 1);
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
        cute::SM90_TMA_STORE_2D::copy(params_.store.get_tma_descriptor(), buffer,
                                      tile_column + step / kBlocks * kColumns,
                                      row_of(step) - lane / 4);
        cute::tma_store_arrive();
      }
    }
  }

 private:
  const Params& params_;
  int stores_ = 0;
};

}  // namespace packhorse::cuda
