// One portable GEMM, for compute capability 8.0 and later. The main loop is CUTLASS 2.x's
// multistage one: cp.async brings tiles of both operands through four stages of shared memory, and
// warps multiply them by mma.m16n8k16. The epilogue is a tree of CUTLASS's visitors that adds bias,
// activation (a visitor of our own) and residual, and stores.
#pragma once

#include <cutlass/gemm/kernel/default_gemm_universal_with_visitor.h>
#include <cutlass/gemm/threadblock/threadblock_swizzle.h>

#include <cutlass/epilogue/threadblock/fusion/visitors.hpp>

#include "cuda/common/activations.cuh"
#include "cuda/device/check.h"
#include "cuda/gemm/gemm.h"

namespace packhorse::cuda {

/// `activate` as a node of CUTLASS 2.x's epilogue trees.
struct ActivationVisitor {
  struct Arguments {
    Activation activation = Activation::kNone;
  };
  using Params = Arguments;
  struct SharedStorage {};

  template <class Problem>
  static Params to_underlying_arguments(const Problem&, const Arguments& args, void*) {
    return args;
  }
  template <class Problem>
  static size_t get_workspace_size(const Problem&, const Arguments&) {
    return 0;
  }
  ActivationVisitor() = default;
  CUTLASS_HOST_DEVICE ActivationVisitor(const Params& params, const SharedStorage&)
      : activation(params.activation) {}

  struct Callbacks : cutlass::epilogue::threadblock::EmptyCallbacks {
    CUTLASS_DEVICE explicit Callbacks(Activation activation) : activation(activation) {}
    template <class Accumulator, int count>
    CUTLASS_DEVICE cutlass::Array<float, count> visit(
        int, int, int, int, const cutlass::Array<Accumulator, count>&,
        const cutlass::Array<float, count>& input) const {
      cutlass::Array<float, count> values = input;
      activate<count>(values, activation);
      return values;
    }
    Activation activation;
  };
  template <class Problem>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord, int, Problem) const {
    return Callbacks(activation);
  }

  Activation activation = Activation::kNone;
};

/// Runs CUTLASS's kernel. Blocks past *row_count end at once, so that a captured graph computes
/// only the tiles of rows that exist.
template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreadCount)
    gemm_sm80_kernel(const __grid_constant__ typename Kernel::Params params,
                     const int32_t* row_count) {
  if (row_count != nullptr) {
    const auto tile =
        typename Kernel::ThreadblockSwizzle().get_tile_offset(params.swizzle_log_tile);
    if (tile.m() * Kernel::Mma::Shape::kM >= *row_count) return;
  }
  extern __shared__ __align__(16) char shared[];
  Kernel()(params, *reinterpret_cast<typename Kernel::SharedStorage*>(shared));
}

template <class Element, int tile_m, int tile_n, bool has_residual>
struct GemmSm80 {
  using Tile = cutlass::gemm::GemmShape<tile_m, tile_n, 32>;
  using Warp = cutlass::gemm::GemmShape<tile_m / 2, tile_n / 2, 32>;
  static constexpr int kStages = 4;

  // The epilogue tree, from its leaves on: accumulator + bias, activation, + residual, store.
  template <template <class> class Function, class... Children>
  using Compute = cutlass::epilogue::threadblock::Sm80EVT<
      cutlass::epilogue::threadblock::VisitorCompute<Function, float, float,
                                                     cutlass::FloatRoundStyle::round_to_nearest>,
      Children...>;
  using Threads = cutlass::epilogue::threadblock::OutputTileThreadLayout<Tile, Warp, Element, 8>;
  using MatrixStride = cute::Stride<int64_t, cute::_1, int64_t>;
  using Bias = cutlass::epilogue::threadblock::VisitorRowBroadcast<
      Threads, float, cute::Stride<cute::_0, cute::_1, int64_t>>;
  using Sum = Compute<cutlass::plus, cutlass::epilogue::threadblock::VisitorAccFetch, Bias>;
  using Activated = cutlass::epilogue::threadblock::Sm80EVT<ActivationVisitor, Sum>;
  using Residual = cutlass::epilogue::threadblock::VisitorAuxLoad<Threads, Element, MatrixStride>;
  using Value =
      std::conditional_t<has_residual, Compute<cutlass::plus, Residual, Activated>, Activated>;
  using Store = cutlass::epilogue::threadblock::VisitorAuxStore<
      Threads, Element, cutlass::FloatRoundStyle::round_to_nearest, MatrixStride>;
  using Fusion = cutlass::epilogue::threadblock::Sm80EVT<Store, Value>;

  using Kernel = typename cutlass::gemm::kernel::DefaultGemmWithVisitor<
      Element, cutlass::layout::RowMajor, cutlass::ComplexTransform::kNone, 8, Element,
      cutlass::layout::ColumnMajor, cutlass::ComplexTransform::kNone, 8, Element,
      cutlass::layout::RowMajor, 8, float, float, cutlass::arch::OpClassTensorOp,
      cutlass::arch::Sm80, Tile, Warp, cutlass::gemm::GemmShape<16, 8, 16>, Fusion,
      cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, kStages,
      cutlass::arch::OpMultiplyAdd>::GemmKernel;

  static void launch(const GemmParams& p, const KernelStream& stream) {
    auto* residual = static_cast<Element*>(const_cast<void*>(p.residual));
    typename Activated::Arguments activated{{{}, {p.bias, 0.0f, {}}, {}}, {p.activation}};
    typename Value::Arguments value = [&] {
      if constexpr (has_residual) {
        return typename Value::Arguments{
            {residual, Element(0), {p.ldr, cute::_1{}, 0}}, activated, {}};
      } else {
        return activated;
      }
    }();
    typename Fusion::Arguments fusion{value,
                                      {static_cast<Element*>(p.out), {p.ldo, cute::_1{}, 0}}};
    typename Kernel::Arguments args(cutlass::gemm::GemmUniversalMode::kGemm, {p.rows, p.n, p.k}, 1,
                                    fusion, p.a, p.weight, nullptr, nullptr, 0, 0, 0, 0, p.lda, p.k,
                                    0, 0);
    const typename Kernel::Params kernel_params(args, p.sm_count, 1);
    const dim3 grid =
        typename Kernel::ThreadblockSwizzle().get_grid_shape(kernel_params.grid_tiled_shape);
    auto* function = &gemm_sm80_kernel<Kernel>;
    constexpr int kSharedBytes = sizeof(typename Kernel::SharedStorage);
    CUDA_CHECK(
        cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
    function<<<grid, Kernel::kThreadCount, kSharedBytes, stream>>>(kernel_params, p.row_count);
    CUDA_CHECK(cudaGetLastError());
  }
};

}  // namespace packhorse::cuda
