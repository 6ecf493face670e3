// Packs weights into the layout that the GEMMs of the CUDA backend read: [out_features,
// in_features], contiguous, 16-bit; or in e4m3, followed by the scales of the rows; or in int8
// (Int8Layout); or quantised in groups, as gemm/w4a16/layout.h says.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/float8.h"
#include "core/format.h"
#include "core/int8.h"
#include "cuda/device/context.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/int8/int8.h"
#include "cuda/gemm/w4a16/layout.h"
#include "cuda/rowwise/rowwise.h"
#include "ops/linear_packer.h"
#include "packhorse/error.h"

namespace packhorse::cuda {

class CudaLinearPacker final : public LinearPacker {
 public:
  /// `context` must outlive the object. `float8`: whether the device has kernels for e4m3.
  CudaLinearPacker(CudaContext& context, bool float8) : context_(context), float8_(float8) {}

  LinearFormat format(DType dtype) const override {
    if (dtype == DType::kFloat16 || dtype == DType::kBFloat16) {
      return {dtype, dtype, ScaleGranularity::kNone, {}};
    }
    if (dtype == DType::kFloat8 && float8_) {
      return {DType::kFloat8, DType::kFloat16, ScaleGranularity::kOutputFeature, {}};
    }
    if (dtype == DType::kInt8) {
      return {DType::kInt8, DType::kFloat16, ScaleGranularity::kOutputFeature, {}};
    }
    throw RuntimeError(concat("dtype ", name_of(dtype), " on ", name_of(context_.device()), ": ",
                              dtype == DType::kFloat8
                                  ? "float8 needs compute capability 9.0 (Hopper) and its own "
                                    "kernels; this device runs float16, bfloat16 or int8"
                                  : "CUDA runs float16, bfloat16 or int8, and float8 on Hopper"));
  }
  LinearFormat grouped_format(const WeightGroups& groups, DType compute) const override {
    if (compute == DType::kFloat16) {
      return {DType::kUInt8, compute, ScaleGranularity::kGroup, groups};
    }
    throw RuntimeError(concat("weights in groups of ", groups.size, " on ",
                              name_of(context_.device()), ": CUDA multiplies them by float16, not ",
                              name_of(compute)));
  }
  size_t bytes(int64_t in_features, int64_t out_features,
               const LinearFormat& format) const override {
    if (format.weight == DType::kInt8) {
      if (in_features > kMostInt8Columns) {
        throw InvalidArgument(concat("dtype int8: a layer of ", in_features,
                                     " in_features, expected at most ", kMostInt8Columns));
      }
      return Int8Layout(in_features, out_features).bytes;
    }
    if (format.groups) return w4a16_layout(out_features, in_features, format.groups).bytes();
    if (format.weight == DType::kFloat8) {
      return float8_scales_offset(in_features, out_features) +
             static_cast<size_t>(out_features) * sizeof(float);
    }
    return static_cast<size_t>(in_features * out_features) * size_of(format.weight);
  }
  void pack(const float* weight, int64_t in_features, int64_t out_features,
            const LinearFormat& format, void* packed) override {
    if (format.weight == DType::kInt8) {
      return pack_int8(in_features, out_features, packed, [&](int64_t n, int8_t* to) {
        return quantize_int8(weight + n * in_features, in_features, to);
      });
    }
    if (format.weight == DType::kFloat8) {
      std::vector<uint8_t> values(static_cast<size_t>(in_features * out_features));
      std::vector<float> scales(static_cast<size_t>(out_features));
      quantize_float8(weight, out_features, in_features, values.data(), scales.data());
      return upload(values.data(), scales.data(), in_features, out_features, packed);
    }
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
  void pack_quantized(const int8_t* weight, const float* scales, int64_t in_features,
                      int64_t out_features, const LinearFormat& format, void* packed) override {
    if (format.weight == DType::kInt8) {
      return pack_int8(in_features, out_features, packed, [&](int64_t n, int8_t* to) {
        std::copy_n(weight + n * in_features, in_features, to);
        return scales[n];
      });
    }
    upload(weight, scales, in_features, out_features, packed);
  }
  void pack_groups(const GroupedWeight& weight, int64_t in_features, int64_t out_features,
                   const LinearFormat& format, void* packed) override {
    const WeightGroups& groups = format.groups;
    check_groups_range(weight, out_features * groups.count(in_features), groups);
    const W4a16Layout layout = w4a16_layout(out_features, in_features, groups);
    const size_t strip_bytes = layout.bytes() / static_cast<size_t>(layout.strips);
    // A part of the weight at a time, so that it is not held twice.
    const auto strips = static_cast<int32_t>(std::max<size_t>(1, (size_t{8} << 20) / strip_bytes));
    std::vector<uint8_t> part;
    for (int32_t first = 0; first < layout.strips; first += strips) {
      const int32_t count = std::min(strips, layout.strips - first);
      part.resize(static_cast<size_t>(count) * strip_bytes);
      for (int32_t i = 0; i < count; ++i) {
        pack_groups_strip(weight, out_features, in_features, groups, first + i,
                          part.data() + static_cast<size_t>(i) * strip_bytes);
      }
      context_.upload(static_cast<uint8_t*>(packed) + static_cast<size_t>(first) * strip_bytes,
                      part.data(), part.size());
    }
  }
  void pack_on_device(const TensorView& weight, const LinearFormat& format, void* packed) override {
    if (format.quantized()) {
      throw InvalidArgument(
          concat(name_of(format.weight),
                 " weights are quantised from host memory, found one on a device"));
    }
    const DeviceGuard guard(context_.index());
    cast(weight, format, packed);
  }

 private:
  // A weight in int8. `row(n, to)` writes the integers of output feature n and returns its scale.
  template <class Row>
  void pack_int8(int64_t in_features, int64_t out_features, void* packed, Row row) {
    const Int8Layout layout(in_features, out_features);
    std::vector<int8_t> host(layout.bytes);
    std::vector<float> scales(static_cast<size_t>(out_features));
    std::vector<float> sums(static_cast<size_t>(out_features));
    for (int64_t n = 0; n < out_features; ++n) {
      int8_t* q = host.data() + n * layout.columns;
      const auto at = static_cast<size_t>(n);
      scales[at] = row(n, q);
      sums[at] = scales[at] * static_cast<float>(std::accumulate(q, q + in_features, int64_t{0}));
    }
    std::memcpy(host.data() + layout.scales, scales.data(), scales.size() * sizeof(float));
    std::memcpy(host.data() + layout.sums, sums.data(), sums.size() * sizeof(float));
    context_.upload(packed, host.data(), host.size());
  }
  // A weight in e4m3 and its scales.
  void upload(const void* values, const float* scales, int64_t in_features, int64_t out_features,
              void* packed) {
    auto* to = static_cast<unsigned char*>(packed);
    context_.upload(to, values, static_cast<size_t>(in_features * out_features));
    context_.upload(to + float8_scales_offset(in_features, out_features), scales,
                    static_cast<size_t>(out_features) * sizeof(float));
  }
  void cast(const TensorView& from, const LinearFormat& format, void* to) {
    CastArgs args;
    args.x = from;
    args.out = TensorView(to, format.weight, from.rows(), from.columns());
    launch_cast(args, context_.stream());
  }

  CudaContext& context_;
  bool float8_;
};

}  // namespace packhorse::cuda
