// Packs weights for the dense layers of the CPU: in panels of columns.
#pragma once

#include "cpu/common/groups_layout.h"
#include "cpu/cpu_context.h"
#include "cpu/gemm/gemm_engine.h"
#include "cpu/gemm/gemm_float.h"
#include "cpu/gemm/gemm_int8.h"
#include "ops/linear_packer.h"

namespace packhorse::cpu {

class CpuLinearPacker final : public LinearPacker {
 public:
  /// `context` must outlive this object.
  explicit CpuLinearPacker(CpuContext& context) : context_(context) {}

  LinearFormat format(DType dtype) const override {
    context_.check_dtype(dtype);
    if (dtype != DType::kInt8) {
      return {dtype,
              context_.computes_in(dtype) ? dtype : DType::kFloat32,
              ScaleGranularity::kNone,
              {}};
    }
    // Computing in bfloat16 would halve the bytes that are moved, but rounding to it costs more
    // than that saves here.
    return {DType::kInt8, DType::kFloat32, ScaleGranularity::kOutputFeature, {}};
  }
  // One scale a row would change log-probabilities by 0.3 to 0.45, inputs of 8 bits in blocks of 32
  // by 0.05, weights of 8 bits in groups of 32 by 0.04. These change them by 0.016.
  LinearFormat lm_format(DType dtype) const override {
    const LinearFormat found = format(dtype);
    if (found.weight != DType::kInt8) return found;
    constexpr auto kSize = static_cast<int32_t>(kWideBlock);
    return grouped_format({.bits = 10, .size = kSize, .wide_inputs = true}, found.compute);
  }
  LinearFormat grouped_format(const WeightGroups& groups, DType compute) const override {
    context_.check_dtype(compute);
    return {DType::kUInt8, compute, ScaleGranularity::kGroup, groups};
  }
  size_t bytes(int64_t in_features, int64_t out_features,
               const LinearFormat& format) const override {
    if (format.groups) return packed_groups_bytes(in_features, out_features, format.groups);
    if (format.quantized()) return packed_int8_bytes(in_features, out_features);
    return packed_bytes(in_features, out_features, format.weight, format.compute);
  }
  void pack(const float* weight, int64_t in_features, int64_t out_features,
            const LinearFormat& format, void* packed) override {
    const CpuContext::Use use(context_);
    if (format.groups) {
      pack_groupwise_weight(weight, in_features, out_features, packed, context_.pool());
    } else if (format.quantized()) {
      pack_int8_weight(weight, in_features, out_features, packed, context_.pool());
    } else {
      pack_weight(weight, in_features, out_features, format.weight, format.compute, packed,
                  context_.pool());
    }
  }
  void pack_quantized(const int8_t* weight, const float* scales, int64_t in_features,
                      int64_t out_features, const LinearFormat&, void* packed) override {
    const CpuContext::Use use(context_);
    pack_int8_weight(weight, scales, in_features, out_features, packed, context_.pool());
  }
  void pack_groups(const GroupedWeight& weight, int64_t in_features, int64_t out_features,
                   const LinearFormat& format, void* packed) override {
    const CpuContext::Use use(context_);
    pack_groupwise_weight(weight, in_features, out_features, format.groups, packed,
                          context_.pool());
  }
  int64_t features_apart(const LinearFormat& format) const override {
    if (format.groups) return kStripeColumns;
    if (format.quantized()) return 0;
    const DType product = product_dtype(format.weight, format.compute);
    return product == DType::kFloat32 ? kPackedColumns : panel_width(product);
  }
  void pack_rows(const float* rows, int64_t first, int64_t count, int64_t in_features,
                 const LinearFormat& format, void* packed) override {
    if (format.groups) {
      pack_groupwise_rows(rows, first, count, in_features, packed);
    } else if (product_dtype(format.weight, format.compute) != DType::kFloat32) {
      pack_panel_rows(rows, first, count, in_features, packed);
    } else {
      pack_float_rows(rows, first, count, in_features, format.weight, packed);
    }
  }
  void pack_group_rows(const GroupedWeight& rows, int64_t first, int64_t count, int64_t in_features,
                       const LinearFormat& format, void* packed) override {
    pack_groupwise_rows(rows, first, count, in_features, format.groups, packed);
  }

 private:
  CpuContext& context_;
};

}  // namespace packhorse::cpu
