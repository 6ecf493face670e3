#include "cuda/cca/sm90.h"
#include "cuda/cca/sm90_kernel.cuh"
#include "cuda/common/tensor_map.h"

namespace packhorse::cuda {
namespace {

template <class Traits>
void launch_tiles(const CcaArgs& args, const KernelStream& stream) {
  const auto map = [&](int rows) {
    return matrix_tensor_map(args.latents.data, args.latents.dtype, args.batch.num_tokens,
                             args.mixed_columns(), args.latents.row_stride, rows,
                             Traits::kBoxColumns);
  };
  const CcaArgsSm90 all{args, shares_of(args, stream.caps.sm_count, Traits::kTileRows),
                        map(Traits::kTileRows), map(Traits::kOwnRows)};
  auto* kernel = cca_sm90_kernel<Traits>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  Traits::kSharedBytes));
  launch_kernel(kernel, static_cast<unsigned>(all.shares.blocks(args)), Traits::kThreads,
                Traits::kSharedBytes, stream, all);
}

}  // namespace

void launch_cca_sm90(const CcaArgs& args, const KernelStream& stream) {
  dispatch_dtype(args.latents.dtype, [&]<class T>() {
    if (args.head_dim == 64) return launch_tiles<CcaTraits<T, 64>>(args, stream);
    launch_tiles<CcaTraits<T, 128>>(args, stream);
  });
}

}  // namespace packhorse::cuda
