// Weights as the dense layers of the CPU read them: panels of columns.
#pragma once

#include "cpu/cpu_context.h"
#include "ops/linear_packer.h"

namespace packhorse::cpu {

class CpuLinearPacker final : public LinearPacker {
 public:
  /// `context` outlives the object.
  explicit CpuLinearPacker(CpuContext& context) : context_(context) {}

  LinearFormat format(DType dtype) const override;
  size_t bytes(int64_t in_features, int64_t out_features,
               const LinearFormat& format) const override;
  void pack(const float* weight, int64_t in_features, int64_t out_features,
            const LinearFormat& format, void* packed) override;
  void pack_quantized(const int8_t* weight, const float* scales, int64_t in_features,
                      int64_t out_features, const LinearFormat& format, void* packed) override;

 private:
  CpuContext& context_;
};

}  // namespace packhorse::cpu
