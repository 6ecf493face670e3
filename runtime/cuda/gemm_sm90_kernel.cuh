// One Hopper GEMM: CUTLASS's TMA + wgmma warp-specialised persistent kernel, our tile scheduler and
// epilogue. Instantiated by gemm_sm90.cu for a closed list.
#pragma once

#define CUTLASS_ENABLE_GDC_FOR_SM90 1  // the kernels obey programmatic dependent launch

#include <cutlass/device_kernel.h>

#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "cuda/check.h"
#include "cuda/gemm.h"
#include "cuda/gemm_scheduler.cuh"
#include "cuda/gemm_sm90_epilogue.cuh"

namespace packhorse::cuda {

template <class Element, int tile_m, int tile_n, int tile_k, bool has_residual>
struct GemmSm90 {
  using TileShape = cute::Shape<cute::Int<tile_m>, cute::Int<tile_n>, cute::Int<tile_k>>;
  using ClusterShape = cute::Shape<cute::_1, cute::_1, cute::_1>;
  using RowMajor = cutlass::layout::RowMajor;
  using Epilogue = WarpEpilogue<Element, tile_m, tile_n, has_residual>;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, RowMajor, 8, Element,
      cutlass::layout::ColumnMajor, 8, float, TileShape, ClusterShape,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename Epilogue::SharedStorage))>,
      cutlass::gemm::KernelTmaWarpSpecializedPingpong>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop,
                                                      Epilogue, RowCountScheduler>;

  static void launch(const GemmParams& p, const GemmConfig& gemm_config, cudaStream_t stream) {
    typename Kernel::Arguments args{cutlass::gemm::GemmUniversalMode::kGemm,
                                    {p.rows, p.n, p.k, 1},
                                    {static_cast<const Element*>(p.a),
                                     {p.lda, cute::_1{}, 0},
                                     static_cast<const Element*>(p.weight),
                                     {p.k, cute::_1{}, 0}},
                                    {p.bias, p.activation, static_cast<const Element*>(p.residual),
                                     p.ldr, static_cast<Element*>(p.out), p.ldo},
                                    {0, p.sm_count},
                                    {p.row_count, gemm_config.panel}};
    auto kernel_params = Kernel::to_underlying_arguments(args, nullptr);

    auto* function = &cutlass::device_kernel<Kernel>;
    constexpr int kSharedBytes = Kernel::SharedStorageSize;
    CUDA_CHECK(
        cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
    const int tiles = cute::ceil_div(p.rows, tile_m) * cute::ceil_div(p.n, tile_n);
    cudaLaunchAttribute overlap;
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(cute::min(tiles, p.sm_count));
    config.blockDim = Kernel::get_block_shape();
    config.dynamicSmemBytes = kSharedBytes;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = p.overlap_previous ? 1 : 0;
    void* arguments[] = {&kernel_params};
    CUDA_CHECK(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(function), arguments));
  }
};

}  // namespace packhorse::cuda
