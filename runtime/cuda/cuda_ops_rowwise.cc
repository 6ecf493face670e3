// The operators that treat each row, or each sequence, by itself.
#include <utility>

#include "core/math.h"
#include "cuda/cuda_ops.h"
#include "cuda/device/caps.h"
#include "cuda/rowwise/rowwise.h"

namespace packhorse::cuda {

void CudaOps::do_embed(const EmbedArgs& args) {
  check_compute("embed", args.out.dtype);
  for (auto [name, view] : {std::pair{"word", &args.word},
                            {"position", &args.position},
                            {"type", &args.type},
                            {"out", &args.out}}) {
    check_vectors("embed", name, *view);
  }
  const DeviceGuard guard(device_);
  launch_embed(args, stream_);
}

void CudaOps::do_activate(const ActivateArgs& args) {
  check_compute("activate", args.x.dtype);
  check_vectors("activate", "x", args.x);
  check_vectors("activate", "out", args.out);
  const DeviceGuard guard(device_);
  launch_activate(args, stream_);
}

void CudaOps::do_unfold(const UnfoldArgs& args) {
  check_compute("unfold", args.x.dtype);
  check_vectors("unfold", "x", args.x);
  check_vectors("unfold", "out", args.out);
  const DeviceGuard guard(device_);
  launch_unfold(args, stream_);
}

void CudaOps::do_norm(const NormArgs& args) {
  const DeviceGuard guard(device_);
  norm(args);
}

bool CudaOps::quantizes_rows(int64_t columns) const {
  return stream_.caps.wgmma && columns <= kNormFloat8Columns && columns % kFloat8Multiple == 0;
}

void CudaOps::norm(const NormArgs& args) {
  check_compute("norm", args.x.dtype);
  to_int32("norm", "rows", args.x.rows());
  for (auto [name, view] : {std::pair{"x", &args.x},
                            {"residual", &args.residual},
                            {"added", &args.added},
                            {"out", &args.out}}) {
    check_vectors("norm", name, *view);
  }
  if constexpr (kBuiltForSm90) {
    if (args.quantized) return launch_norm_float8(args, stream_);
  }
  launch_norm(args, stream_);
}

void CudaOps::norm_in_place(const TensorView& rows, const NormWeight& weight,
                            const Float8Rows& quantized, const int32_t* row_count) {
  norm({.x = rows, .norm = weight, .out = rows, .row_count = row_count, .quantized = quantized});
}

void CudaOps::do_pool(const PoolArgs& args) {
  check_compute("pool", args.x.dtype);
  // Rows are read by whole vectors: the last one may end in columns that are not asked for.
  TensorView read = args.x;
  if (read.row_stride > read.columns()) {
    read.shape[1] = round_up(read.columns(), kMultiple);
  }
  check_vectors("pool", "x", read);
  const DeviceGuard guard(device_);
  launch_pool(args, stream_);
}

void CudaOps::do_log_softmax(const LogSoftmaxArgs& args) {
  check_compute("log_softmax", args.x.dtype);
  to_int32("log_softmax", "rows", args.x.rows());
  const DeviceGuard guard(device_);
  launch_log_softmax(args, stream_);
}

void CudaOps::do_cast(const CastArgs& args) {
  const DeviceGuard guard(device_);
  launch_cast(args, stream_);
}

}  // namespace packhorse::cuda
