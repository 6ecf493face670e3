// Packs weights into the layout that the GEMMs of the CUDA backend read: [out_features,
// in_features], contiguous, 16-bit.
#pragma once

#include "core/format.h"
#include "cuda/cuda_context.h"
#include "cuda/rows/cast.h"
#include "ops/linear_packer.h"
#include "packhorse/error.h"

namespace packhorse::cuda {

class CudaLinearPacker final : public LinearPacker {
 public:
  /// `context` must outlive the object.
  explicit CudaLinearPacker(CudaContext& context) : context_(context) {}

  LinearFormat format(DType dtype) const override {
    if (dtype == DType::kFloat16 || dtype == DType::kBFloat16) {
      return {dtype, dtype, ScaleGranularity::kNone, {}};
    }
    throw RuntimeError(concat("dtype ", name_of(dtype), " on ", name_of(context_.device()),
                              ": CUDA runs float16 or bfloat16"));
  }
  size_t bytes(int64_t in_features, int64_t out_features,
               const LinearFormat& format) const override {
    return static_cast<size_t>(in_features * out_features) * size_of(format.weight);
  }
  void pack(const float* weight, int64_t in_features, int64_t out_features,
            const LinearFormat& format, void* packed) override {
    const DeviceGuard guard(context_.index());
    auto* to = static_cast<unsigned char*>(packed);
    const size_t bytes = static_cast<size_t>(in_features * out_features) * sizeof(float);
    // The kernel reads the page-locked slot itself, so the float32 weight never takes device
    // memory.
    context_.stage(weight, bytes, [&](void* staged, size_t offset, size_t size) {
      const auto count = static_cast<int64_t>(size / sizeof(float));
      cast(TensorView(staged, DType::kFloat32, 1, count), format,
           to + offset / sizeof(float) * size_of(format.weight));
    });
  }
  void pack_on_device(const TensorView& weight, const LinearFormat& format, void* packed) override {
    const DeviceGuard guard(context_.index());
    cast(weight, format, packed);
  }

 private:
  void cast(const TensorView& from, const LinearFormat& format, void* to) {
    CastArgs args;
    args.x = from;
    args.out = TensorView(to, format.weight, from.rows(), from.columns());
    launch_cast(args, context_.stream());
  }

  CudaContext& context_;
};

}  // namespace packhorse::cuda
