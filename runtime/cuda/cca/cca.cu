#include "cuda/cca/cca.h"
#include "cuda/cca/kernel.cuh"
#include "cuda/cca/plain_kernel.cuh"
#include "cuda/cca/sm90.h"
#include "cuda/device/caps.h"

namespace packhorse::cuda {
namespace {

// By the sizes of the layer and the device alone.
bool on_tensor_cores(const CcaArgs& args, const DeviceCaps& caps) {
  const bool known = args.head_dim == 64 || args.head_dim == 128;
  return known && args.depthwise_width == 2 && args.grouped_width == 2 &&
         args.delayed_column % kVectorSize == 0 &&
         sizeof(ManyTile<__half, 128>::Shared) <= caps.shared_bytes;
}

template <class T, bool kVectors>
void launch_keep(const CcaArgs& args, const KernelStream& stream) {
  if (args.pages.rows.rank == 0) return;
  launch_kernel(keep_latents_kernel<T, kVectors>, block_count(args.batch.num_tokens, 8), 256, 0,
                stream, args);
}

template <class T, bool kVectors>
void launch_plain(const CcaArgs& args, const KernelStream& stream) {
  const dim3 blocks(block_count(args.batch.num_tokens, kPlainTokens),
                    static_cast<unsigned>(args.num_heads + args.num_kv_heads + 1));
  auto* kernel = cca_plain_kernel<T, kVectors>;
  const size_t bytes = plain_floats(args) * sizeof(float);
  allow_most_shared_memory(kernel, stream.caps);
  launch_kernel(kernel, blocks, kPlainThreads, bytes, stream, args);
  launch_keep<T, kVectors>(args, stream);
}

template <class T, int D>
void launch_tensor_cores(const CcaArgs& args, bool wgmma, const KernelStream& stream) {
  const int heads = args.num_heads + args.num_kv_heads;
  using Skinny = SkinnyTile<T, D>;
  // Chooses a kernel by the size of the batch; all of them give the same bits.
  if (args.batch.num_tokens <= Skinny::kTiles * Skinny::kRows) {
    auto* kernel = cca_skinny_kernel<T, D>;
    constexpr size_t kBytes = sizeof(typename Skinny::Shared);
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(kBytes)));
    return launch_kernel(kernel, static_cast<unsigned>(heads + 1), Skinny::kThreads, kBytes, stream,
                         args);
  }
  if constexpr (kBuiltForSm90) {
    if (wgmma) {
      launch_cca_sm90(args, stream);
      return launch_keep<T, true>(args, stream);
    }
  }
  using Many = ManyTile<T, D>;
  auto* kernel = cca_kernel<T, D>;
  constexpr size_t kBytes = sizeof(typename Many::Shared);
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(kBytes)));
  const CcaShares shares = shares_of(args, stream.caps.sm_count, Many::kTiles * Many::kRows);
  launch_kernel(kernel, static_cast<unsigned>(shares.blocks(args)), Many::kThreads, kBytes, stream,
                args, shares);
  launch_keep<T, true>(args, stream);
}

}  // namespace

void launch_cca(const CcaArgs& args, bool wgmma, const KernelStream& stream) {
  if (args.batch.num_tokens == 0) return;
  dispatch_dtype(args.latents.dtype, [&]<class T>() {
    if (on_tensor_cores(args, stream.caps)) {
      const auto launch =
          args.head_dim == 64 ? launch_tensor_cores<T, 64> : launch_tensor_cores<T, 128>;
      return launch(args, wgmma, stream);
    }
    if (args.delayed_column % kVectorSize == 0) return launch_plain<T, true>(args, stream);
    launch_plain<T, false>(args, stream);
  });
}

}  // namespace packhorse::cuda
