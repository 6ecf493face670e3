// Products of 64 x 64 tiles by one warpgroup (CuTe's wgmma atoms), for attention with a
// disentangled term.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

#include "cuda/common/mma_sm80.cuh"

namespace packhorse::cuda {

namespace sm90 {

constexpr int kSide = 64;  // rows and columns of every tile

/// Layout of rows of 64 elements in the 128-byte swizzle of wgmma operands.
struct SwizzledRows {
  static constexpr int kColumns = kSide;
  __device__ static int offset(int row, int column) {
    return row * kSide + (column / kVectorSize ^ row % 8) * kVectorSize;
  }
};

/// Products of 64 x 64 x 64 by one warpgroup. `Rows` is the K-major layout of an operand, `Turned`
/// the MN-major one of a transposed B. An accumulator holds a thread's elements by blocks of 8
/// columns. The functions issue and commit a product without waiting for it; `wait` waits.
template <class T>
struct Products {
  using Element =
      std::conditional_t<std::is_same_v<T, __half>, cutlass::half_t, cutlass::bfloat16_t>;
  using Shape = cute::Shape<cute::_64, cute::_64, cute::_64>;
  using Major = cute::SM90::GMMA::Major;
  using Rows = decltype(cute::tile_to_shape(cute::SM90::GMMA::Layout_K_SW128_Atom<Element>{},
                                            cute::Shape<cute::_64, cute::_64>{}));
  using Turned = decltype(cute::tile_to_shape(cute::SM90::GMMA::Layout_MN_SW128_Atom<Element>{},
                                              cute::Shape<cute::_64, cute::_64>{},
                                              cute::Step<cute::_2, cute::_1>{}));
  using InShared = decltype(cute::make_tiled_mma(
      cute::SM90::GMMA::ss_op_selector<Element, Element, float, Shape, Major::K, Major::K>()));
  using InRegisters = decltype(cute::make_tiled_mma(
      cute::SM90::GMMA::rs_op_selector<Element, Element, float, Shape, Major::K, Major::K>()));
  using OfTurned = decltype(cute::make_tiled_mma(
      cute::SM90::GMMA::rs_op_selector<Element, Element, float, Shape, Major::K, Major::MN>()));
  using Accumulator = float[8][4];

  template <class Layout>
  __device__ static auto tile(const T* at) {
    auto* elements = reinterpret_cast<Element*>(const_cast<T*>(at));
    return cute::make_tensor(cute::make_smem_ptr(elements), Layout{});
  }

  template <class Mma, class A, class B>
  __device__ static void issue(Mma mma, const A& a, const B& b, Accumulator& out, bool add) {
    auto c = cute::make_tensor(
        &out[0][0], cute::Shape<cute::Shape<cute::_2, cute::_2, cute::_8>, cute::_1, cute::_1>{});
    mma.accumulate_ = add ? cute::SM90::GMMA::ScaleOut::One : cute::SM90::GMMA::ScaleOut::Zero;
    cute::warpgroup_fence_operand(c);
    cute::warpgroup_arrive();
    CUTE_UNROLL
    for (int i = 0; i < kSide / 16; ++i) {
      cute::gemm(mma, a(cute::_, cute::_, i), b(cute::_, cute::_, i), c);
      mma.accumulate_ = cute::SM90::GMMA::ScaleOut::One;
    }
    cute::warpgroup_commit_batch();
  }

  template <class Mma, class Tile>
  __device__ static void issue(Mma mma, const Fragment (&a)[4], const Tile& b, Accumulator& out,
                               bool add) {
    auto* elements = reinterpret_cast<Element*>(const_cast<Fragment*>(a));
    const auto fragment = cute::make_tensor(
        elements, cute::Shape<cute::Shape<cute::_2, cute::_2, cute::_2>, cute::_1, cute::_4>{});
    issue(mma, fragment, mma.get_slice(threadIdx.x % 128).partition_fragment_B(b), out, add);
  }

  /// Issues out = a b^T, with `a` in registers and the rows of b at `b`.
  __device__ static void multiply(const Fragment (&a)[4], const T* b, Accumulator& out) {
    issue(InRegisters{}, a, tile<Rows>(b), out, false);
  }
  /// Issues out = a b^T, with the rows of both in shared memory.
  __device__ static void multiply(const T* a, const T* b, Accumulator& out) {
    const InShared mma;
    const auto slice = mma.get_slice(threadIdx.x % 128);
    issue(mma, slice.partition_fragment_A(tile<Rows>(a)), slice.partition_fragment_B(tile<Rows>(b)),
          out, false);
  }
  /// Issues out += a b, with `a` in registers and the rows of b at `b`.
  __device__ static void accumulate(const Fragment (&a)[4], const T* b, Accumulator& out) {
    issue(OfTurned{}, a, tile<Turned>(b), out, true);
  }

  /// Waits until at most kPending products are in flight; `out` may then be read.
  template <int kPending>
  __device__ static void wait(Accumulator& out) {
    cute::warpgroup_wait<kPending>();
    auto c = cute::make_tensor(
        &out[0][0], cute::Shape<cute::Shape<cute::_2, cute::_2, cute::_8>, cute::_1, cute::_1>{});
    cute::warpgroup_fence_operand(c);
  }
};

}  // namespace sm90

}  // namespace packhorse::cuda
