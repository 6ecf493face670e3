// The operators that only models of images ask for.
#include <utility>

#include "cuda/cuda_ops.h"
#include "cuda/device/caps.h"
#include "cuda/patches/patches.h"

namespace packhorse::cuda {

void CudaOps::do_embed_patches(const EmbedPatchesArgs& args) {
  const char* op = "embed_patches";
  check_compute(op, args.out.dtype);
  check_int32(op, args.batch);
  for (auto [name, view] : {std::pair{"x", &args.x},
                            {"prefix", &args.prefix},
                            {"positions", &args.positions.table},
                            {"out", &args.out}}) {
    check_vectors(op, name, *view);
  }
  const DeviceGuard guard(device_);
  launch_embed_patches(args, stream_);
}

void CudaOps::do_probe_attention(const ProbeAttentionArgs& args) {
  const char* op = "probe_attention";
  check_compute(op, args.keys.dtype);
  check_int32(op, args.batch);
  to_int32(op, "num_sequences times num_heads", args.batch.num_sequences * args.num_heads);
  const DeviceGuard guard(device_);
  launch_probe_attention(args, stream_);
}

}  // namespace packhorse::cuda
