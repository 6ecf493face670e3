// Weights as the GEMMs of CUDA read them: [out_features, in_features] in 16 bit.
#pragma once

#include "cuda/cuda_context.h"
#include "ops/linear_packer.h"

namespace packhorse::cuda {

class CudaLinearPacker final : public LinearPacker {
 public:
  /// `context` outlives the object.
  explicit CudaLinearPacker(CudaContext& context) : context_(context) {}

  LinearFormat format(DType dtype) const override;
  size_t bytes(int64_t in_features, int64_t out_features,
               const LinearFormat& format) const override;
  void pack(const float* weight, int64_t in_features, int64_t out_features,
            const LinearFormat& format, void* packed) override;
  void pack_on_device(const TensorView& weight, const LinearFormat& format, void* packed) override;

 private:
  CudaContext& context_;
};

}  // namespace packhorse::cuda
