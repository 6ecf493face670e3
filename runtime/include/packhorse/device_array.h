// Batches and results that stay in device memory, and the streams of other libraries.
#pragma once

#include <cstdint>
#include <span>

#include "packhorse/export.h"
#include "packhorse/types.h"

namespace packhorse {

/// A CUDA stream, numbered as in DLPack: 0 means no stream, 1 the legacy default stream, 2 the
/// per-thread default stream, and any other number is a cudaStream_t. A stream must live until the
/// work that was ordered against it is done.
using StreamHandle = uintptr_t;

/// A borrowed view of one packed batch in device memory. The arrays are as in PackedTokens.
struct DeviceTokens {
  const int32_t* ids = nullptr;           // [num_tokens]
  const int32_t* cu_seqlens = nullptr;    // [num_sequences + 1]
  const int32_t* type_ids = nullptr;      // [num_tokens] or null
  const int32_t* position_ids = nullptr;  // [num_tokens] or null
  int64_t num_tokens = 0;
  int64_t num_sequences = 0;
  std::span<const int32_t> prediction_rows = {};  // [M], in host memory
};

/// A borrowed view of one batch of images, whose patches lie in device memory. Arrays are as in
/// PackedPatches.
struct DevicePatches {
  const void* features = nullptr;       // [num_patches, columns], on the device
  DType dtype = DType::kFloat32;        // features may be float16 or bfloat16, too
  int64_t num_patches = 0;              // P
  int64_t columns = 0;                  // k
  std::span<const int32_t> grids = {};  // [B, 2], in host memory
};

/// A result in device memory. Another run may use the memory only after the last DeviceArray of
/// this run is destroyed, and after the work that streams passed to `make_ready_on` had been asked
/// for by then. Methods may be called from any thread.
class PACKHORSE_API DeviceArray {
 public:
  virtual ~DeviceArray() = default;

  Device device() const { return device_; }
  const TensorView& view() const { return view_; }
  /// The stream that the run was ordered with, or 1, the legacy default stream, if there was none.
  StreamHandle stream() const { return stream_ == 0 ? 1 : stream_; }
  /// Makes all work that `stream` is asked for from now on find the result complete. The host does
  /// not wait.
  virtual void make_ready_on(StreamHandle stream) = 0;
  /// Waits for the result and copies it as float32 to `to`. Throws as `check` does.
  virtual void read(float* to) = 0;
  /// Waits for the run. Throws InvalidArgument if the device found an error in the batch, saying
  /// what it found.
  virtual void check() = 0;

 protected:
  DeviceArray(Device device, const TensorView& view, StreamHandle stream)
      : device_(device), view_(view), stream_(stream) {}

 private:
  Device device_;
  TensorView view_;
  StreamHandle stream_;
};

}  // namespace packhorse
