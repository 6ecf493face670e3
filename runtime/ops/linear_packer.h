// Converts the weights of dense layers into a backend's own layout.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/args/weight_groups.h"
#include "packhorse/export.h"
#include "packhorse/types.h"

namespace packhorse {

/// Which numbers of a quantised weight share a scale.
enum class ScaleGranularity : uint8_t { kNone, kOutputFeature, kGroup };

/// The dtypes in which a dense layer is stored and computed.
struct LinearFormat {
  /// A 16-bit weight with float32 inputs is converted to float32 when it is read, so that results
  /// are those of a float32 weight of the same numbers, bit for bit.
  DType weight = DType::kFloat32;
  DType compute = DType::kFloat32;  // dtype of inputs and outputs
  ScaleGranularity scales = ScaleGranularity::kNone;
  WeightGroups groups = {};  // with kGroup, where `weight` is kUInt8
  /// Most products have few rows, as in a model that generates. A backend may then form
  /// sums in another order than otherwise, though in the same one for any number of rows.
  bool skinny = false;

  bool quantized() const { return scales != ScaleGranularity::kNone; }
  /// The format of layers of the same model that are not quantised.
  LinearFormat plain() const {
    return {quantized() ? compute : weight, compute, ScaleGranularity::kNone, {}};
  }
};

class PACKHORSE_API LinearPacker {
 public:
  virtual ~LinearPacker() = default;

  /// The format of the dense layers of a model that is loaded with `dtype`. Throws RuntimeError if
  /// the device does not support it, saying what the device lacks.
  virtual LinearFormat format(DType dtype) const = 0;

  /// The format of a model with a language model head, whose results depend more on rounding.
  virtual LinearFormat lm_format(DType dtype) const { return format(dtype); }

  /// The format of a layer whose weights are quantised in `groups`, in a model that computes in
  /// `compute`. Throws RuntimeError if the device has no kernels for it.
  virtual LinearFormat grouped_format(const WeightGroups& groups, DType compute) const = 0;

  virtual size_t bytes(int64_t in_features, int64_t out_features,
                       const LinearFormat& format) const = 0;
  /// `weight` is float32 [out_features, in_features] in host memory; `packed` is device memory of
  /// as many bytes as `bytes` says.
  virtual void pack(const float* weight, int64_t in_features, int64_t out_features,
                    const LinearFormat& format, void* packed) = 0;
  /// Packs a weight [out_features, in_features] that is quantised already, with `scales`
  /// [out_features], into a quantised format. With kFloat8 `weight` has the bits of e4m3.
  virtual void pack_quantized(const int8_t* weight, const float* scales, int64_t in_features,
                              int64_t out_features, const LinearFormat& format, void* packed);
  /// Packs a weight that is quantised in the groups of `format` already.
  virtual void pack_groups(const GroupedWeight& weight, int64_t in_features, int64_t out_features,
                           const LinearFormat& format, void* packed) = 0;
  /// The number of output features that are packed apart from others: a packed weight is a sequence
  /// of parts of so many each. 0: a weight of this format is packed as a whole.
  virtual int64_t features_apart(const LinearFormat& format) const;
  /// Packs output features [first, first + count) of a weight, of which `rows` has only these.
  /// `first` is a multiple of features_apart, and `count` is one except at the end of the weight.
  /// May be called from within DeviceContext::for_each.
  virtual void pack_rows(const float* rows, int64_t first, int64_t count, int64_t in_features,
                         const LinearFormat& format, void* packed);
  /// Packs some output features of a weight that is quantised in the groups of `format`.
  virtual void pack_group_rows(const GroupedWeight& rows, int64_t first, int64_t count,
                               int64_t in_features, const LinearFormat& format, void* packed);
  /// Packs a weight that lies on the device into a format that is not quantised. Only devices with
  /// a DeviceIo implement this.
  virtual void pack_on_device(const TensorView& weight, const LinearFormat& format, void* packed);
};

}  // namespace packhorse
