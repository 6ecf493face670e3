// One int8 GEMM, for compute capability 8.0 and later: the main loop of the portable 16-bit GEMM
// (gemm/sm80/kernel.cuh) with mma.m16n8k32 of unsigned by signed bytes, and a visitor of our own in
// the epilogue tree that converts the sums to float32.
#pragma once

#include <type_traits>

#include "cuda/gemm/int8/int8.h"
#include "cuda/gemm/sm80/kernel.cuh"

namespace packhorse::cuda {

/// `dequantized` as a node of CUTLASS 2.x's epilogue trees.
struct DequantizeVisitor : cutlass::epilogue::threadblock::VisitorImpl2x<> {
  using VisitorImpl2x<>::VisitorImpl2x;

  struct Callbacks : cutlass::epilogue::threadblock::EmptyCallbacks {
    template <int count>
    using Floats = cutlass::Array<float, count>;

    template <int count>
    CUTLASS_DEVICE Floats<count> visit(int, int, int, int, const cutlass::Array<int32_t, count>&,
                                       const cutlass::Array<int32_t, count>& sums,
                                       const Floats<count>& row_scale,
                                       const Floats<count>& row_offset,
                                       const Floats<count>& column_scale,
                                       const Floats<count>& column_sum,
                                       const Floats<count>& bias) const {
      Floats<count> values;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < count; ++i) {
        values[i] = dequantized(sums[i], row_scale[i], row_offset[i], column_scale[i],
                                column_sum[i], bias[i]);
      }
      return values;
    }
  };
  template <class Problem>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord, int, Problem) {
    return Callbacks{};
  }
};

template <class Element, int tile_m, int tile_n, bool has_residual>
struct GemmInt8 {
  using Tile = cutlass::gemm::GemmShape<tile_m, tile_n, 64>;
  using Warp = cutlass::gemm::GemmShape<tile_m / 2, tile_n / 2, 64>;
  static constexpr int kStages = 4;

  // The epilogue tree, from its leaves on: sums as float32, activation, + residual, store.
  using Threads = cutlass::epilogue::threadblock::OutputTileThreadLayout<Tile, Warp, Element, 8>;
  using MatrixStride = cute::Stride<int64_t, cute::_1, int64_t>;
  using OfRows = cutlass::epilogue::threadblock::VisitorColBroadcast<
      Threads, float, cute::Stride<cute::_1, cute::_0, int64_t>>;
  using OfColumns = cutlass::epilogue::threadblock::VisitorRowBroadcast<
      Threads, float, cute::Stride<cute::_0, cute::_1, int64_t>>;
  using Floats =
      cutlass::epilogue::threadblock::Sm80EVT<DequantizeVisitor,
                                              cutlass::epilogue::threadblock::VisitorAccFetch,
                                              OfRows, OfRows, OfColumns, OfColumns, OfColumns>;
  using Activated = cutlass::epilogue::threadblock::Sm80EVT<ActivationVisitor, Floats>;
  using Residual = cutlass::epilogue::threadblock::VisitorAuxLoad<Threads, Element, MatrixStride>;
  using Added = cutlass::epilogue::threadblock::Sm80EVT<
      cutlass::epilogue::threadblock::VisitorCompute<cutlass::plus, float, float,
                                                     cutlass::FloatRoundStyle::round_to_nearest>,
      Residual, Activated>;
  using Value = std::conditional_t<has_residual, Added, Activated>;
  using Store = cutlass::epilogue::threadblock::VisitorAuxStore<
      Threads, Element, cutlass::FloatRoundStyle::round_to_nearest, MatrixStride>;
  using Fusion = cutlass::epilogue::threadblock::Sm80EVT<Store, Value>;

  // CUTLASS has unsigned by signed bytes only with saturating sums. Ours never saturate:
  // kMostInt8Columns * 255 * 128 is less than 2^31.
  static_assert(kMostInt8Columns * 255 * 128 < int64_t{1} << 31);
  using Kernel = typename cutlass::gemm::kernel::DefaultGemmWithVisitor<
      uint8_t, cutlass::layout::RowMajor, cutlass::ComplexTransform::kNone, 16, int8_t,
      cutlass::layout::ColumnMajor, cutlass::ComplexTransform::kNone, 16, Element,
      cutlass::layout::RowMajor, 8, int32_t, float, cutlass::arch::OpClassTensorOp,
      cutlass::arch::Sm80, Tile, Warp, cutlass::gemm::GemmShape<16, 8, 32>, Fusion,
      cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, kStages,
      cutlass::arch::OpMultiplyAddSaturate>::GemmKernel;

  static void launch(const LinearArgs& args, const RowBytes& rows, const KernelStream& stream) {
    const auto n = static_cast<int>(args.weight.out_features);
    const auto k = static_cast<int>(padded_int8(args.weight.in_features));
    const Int8Layout layout(k, n);
    const auto* packed = static_cast<const char*>(args.weight.data);
    const auto of_columns = [](const float* values) {
      return typename OfColumns::Arguments{values, 0.0f, {}};
    };
    typename Floats::Arguments floats{
        {},
        {rows.scales, 0.0f, {}},
        {rows.offsets, 0.0f, {}},
        of_columns(reinterpret_cast<const float*>(packed + layout.scales)),
        of_columns(reinterpret_cast<const float*>(packed + layout.sums)),
        of_columns(args.weight.bias),
        {}};
    typename Activated::Arguments activated{floats, {args.activation}};
    typename Value::Arguments value = [&] {
      if constexpr (has_residual) {
        auto* residual = args.residual.as<Element>();
        return typename Value::Arguments{
            {residual, Element(0), {args.residual.row_stride, cute::_1{}, 0}}, activated, {}};
      } else {
        return activated;
      }
    }();
    typename Fusion::Arguments fusion{
        value, {args.out.as<Element>(), {args.out.row_stride, cute::_1{}, 0}}};
    const typename Kernel::Arguments arguments(
        cutlass::gemm::GemmUniversalMode::kGemm, {static_cast<int>(args.x.rows()), n, k}, 1, fusion,
        rows.values, args.weight.data, nullptr, nullptr, 0, 0, 0, 0, k, k, 0, 0);
    const typename Kernel::Params kernel_params(arguments, stream.caps.sm_count, 1);
    const dim3 grid =
        typename Kernel::ThreadblockSwizzle().get_grid_shape(kernel_params.grid_tiled_shape);
    auto* function = &gemm_sm80_kernel<Kernel>;
    constexpr int kSharedBytes = sizeof(typename Kernel::SharedStorage);
    CUDA_CHECK(
        cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
    function<<<grid, Kernel::kThreadCount, kSharedBytes, stream>>>(kernel_params, args.row_count);
    CUDA_CHECK(cudaGetLastError());
  }
};

}  // namespace packhorse::cuda
