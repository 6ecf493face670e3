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

  static constexpr int kColumns = tile_n % 64 == 0 ? 64 : 32;  // of one step
  static constexpr int kRows = 16;
  static constexpr int kValues = kRows * kColumns / 32;  // of one thread in a step
  static constexpr int kGroups = kColumns / 8;
  static constexpr int kBlocks = tile_m / 64;  // wgmma blocks of a warpgroup, one above the other
  static constexpr int kSteps = tile_n / kColumns * kBlocks;
  static constexpr int kWarps = 8;
  // What the accumulators leave of the registers holds operands of the steps to come.
  static constexpr int kResidualSteps = kSteps < 2 ? kSteps : 2;
  static constexpr int kBiasAhead = !has_residual && tile_n <= 128;  // strips of kColumns columns
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

    uint32_t residual[kResidualSteps][kGroups][2];
    auto load_residual = [&](int step) {
      const int row = row_of(step) + lane / 4, column = column_of(step) + lane % 4 * 2;
      const Element* source = params_.residual + row * params_.ldr + column;
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t& pair = residual[step % kResidualSteps][j][half];
          pair = 0;
          if (row + 8 * half < rows && column + 8 * j < columns)
            pair = *reinterpret_cast<const uint32_t*>(source + 8 * half * params_.ldr + 8 * j);
        }
      }
    };
    float2 bias[2][kGroups] = {};  // of a strip of kColumns columns: kBlocks steps
    auto load_bias = [&](int strip) {
      if (params_.bias == nullptr) return;
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const int column = column_of(strip * kBlocks) + lane % 4 * 2 + 8 * j;
        if (column < columns)
          bias[strip % 2][j] = __ldg(reinterpret_cast<const float2*>(params_.bias + column));
      }
    };
    if (kBiasAhead) load_bias(0);
    if constexpr (has_residual) {
#pragma unroll
      for (int step = 0; step < kResidualSteps; ++step) load_residual(step);
    }

#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int strip = step / kBlocks;
      if (step % kBlocks == 0 && strip + kBiasAhead < kSteps / kBlocks)
        load_bias(strip + kBiasAhead);
      float values[kValues];
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        const float2 pair = bias[strip % 2][i / 4];
        values[i] = accumulators(step % kBlocks * (tile_n / 2) + strip * kValues + i) +
                    (i % 2 == 0 ? pair.x : pair.y);
      }
      activate<kValues>(values, params_.activation);
      if constexpr (has_residual) {
        cutlass::NumericArrayConverter<float, Element, 2> widen;
#pragma unroll
        for (int i = 0; i < kValues; i += 2) {
          const auto pair = widen(reinterpret_cast<const cutlass::Array<Element, 2>&>(
              residual[step % kResidualSteps][i / 4][i / 2 % 2]));
          values[i] += pair[0];
          values[i + 1] += pair[1];
        }
        if (step + kResidualSteps < kSteps) load_residual(step + kResidualSteps);
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

 protected:
  const Params& params_;

 private:
  int stores_ = 0;
};

/// With the plumbing that CUTLASS's kernels expect of an epilogue.
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
  CUTLASS_DEVICE static bool is_producer_load_needed() { return has_residual; }

  /// Called once per tile by a warp of the producers, as soon as the first operands are on their
  /// way. Brings the residual of both warpgroups' first tiles to L2 during the first mainloop;
  /// where there are more, the other warpgroup's mainloop hides the latency.
  template <class Pipeline, class State, class Problem, class Tile, class Coord, class Mma,
            class Storage>
  CUTLASS_DEVICE State load(Pipeline, State state, Problem problem, Tile, Coord coord, Mma,
                            int lane, Storage&) {
    constexpr int kLine = 64;  // 128 bytes
    constexpr int kLines = (tile_n + kLine - 1) / kLine;
    if (tiles_loaded_++ >= 2) return state;
#pragma unroll 1
    for (int i = lane; i < tile_m * kLines; i += 32) {
      const int row = cute::get<0>(coord) * tile_m + i / kLines;
      const int column = cute::get<1>(coord) * tile_n + i % kLines * kLine;
      if (row < cute::get<0>(problem) && column < cute::get<1>(problem))
        asm volatile("prefetch.global.L2 [%0];" ::"l"(this->params_.residual +
                                                      row * this->params_.ldr + column));
    }
    return state;
  }

 private:
  int tiles_loaded_ = 0;
};

}  // namespace packhorse::cuda
