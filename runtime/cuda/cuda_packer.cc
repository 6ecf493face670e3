#include "cuda/cuda_packer.h"

#include "core/format.h"
#include "cuda/rows/cast.h"
#include "packhorse/error.h"

namespace packhorse::cuda {

LinearFormat CudaLinearPacker::format(DType dtype) const {
  if (dtype == DType::kFloat16 || dtype == DType::kBFloat16) {
    return {dtype, dtype, ScaleGranularity::kNone};
  }
  throw RuntimeError(concat("dtype ", name_of(dtype), " on ", name_of(context_.device()),
                            ": CUDA runs float16 or bfloat16"));
}

size_t CudaLinearPacker::bytes(int64_t in_features, int64_t out_features,
                               const LinearFormat& format) const {
  return static_cast<size_t>(in_features * out_features) * size_of(format.weight);
}

void CudaLinearPacker::pack(const float* weight, int64_t in_features, int64_t out_features,
                            const LinearFormat& format, void* packed) {
  const DeviceGuard guard(context_.index());
  auto* to = static_cast<unsigned char*>(packed);
  const size_t bytes = static_cast<size_t>(in_features * out_features) * sizeof(float);
  // The kernel reads the page-locked slot itself: float32 never needs device memory.
  context_.stage(weight, bytes, [&](void* staged, size_t offset, size_t size) {
    const auto count = static_cast<int64_t>(size / sizeof(float));
    CastArgs cast;
    cast.x = TensorView(staged, DType::kFloat32, 1, count);
    cast.out =
        TensorView(to + offset / sizeof(float) * size_of(format.weight), format.weight, 1, count);
    launch_cast(cast, context_.stream());
  });
}

void CudaLinearPacker::pack_on_device(const TensorView& weight, const LinearFormat& format,
                                      void* packed) {
  const DeviceGuard guard(context_.index());
  CastArgs cast;
  cast.x = weight;
  cast.out = TensorView(packed, format.weight, weight.rows(), weight.columns());
  launch_cast(cast, context_.stream());
}

}  // namespace packhorse::cuda
