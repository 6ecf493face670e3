// The weights of dense layers in a backend's own layout.
#pragma once

#include <cstddef>
#include <cstdint>

#include "packhorse/export.h"
#include "packhorse/types.h"

namespace packhorse {

/// How many numbers of a quantised weight share a scale.
enum class ScaleGranularity : uint8_t { kNone, kOutputFeature };

/// How a dense layer is stored, and what it computes with.
struct LinearFormat {
  DType weight = DType::kFloat32;
  DType compute = DType::kFloat32;  // of what goes in and what comes out
  ScaleGranularity scales = ScaleGranularity::kNone;

  bool quantized() const { return scales != ScaleGranularity::kNone; }
  /// A layer beside this one that is not quantised.
  LinearFormat plain() const { return {compute, compute, ScaleGranularity::kNone}; }
};

class PACKHORSE_API LinearPacker {
 public:
  virtual ~LinearPacker() = default;

  /// What the dense layers of a model that is loaded with `dtype` are in. Throws RuntimeError
  /// saying what the device lacks for it.
  virtual LinearFormat format(DType dtype) const = 0;

  virtual size_t bytes(int64_t in_features, int64_t out_features,
                       const LinearFormat& format) const = 0;
  /// `weight`: host float32 [out_features, in_features]; `packed`: `bytes` of device memory.
  virtual void pack(const float* weight, int64_t in_features, int64_t out_features,
                    const LinearFormat& format, void* packed) = 0;
  /// The same of a weight that is quantised already, in a format that is; `scales` [out_features].
  virtual void pack_quantized(const int8_t* weight, const float* scales, int64_t in_features,
                              int64_t out_features, const LinearFormat& format, void* packed);
  /// The same of a weight that lies on the device, in a format that is not quantised. For devices
  /// with a DeviceIo.
  virtual void pack_on_device(const TensorView& weight, const LinearFormat& format, void* packed);
};

}  // namespace packhorse
