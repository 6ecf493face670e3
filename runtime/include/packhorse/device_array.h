// Batches and results that stay in a device's memory, and the streams of other libraries.
#pragma once

#include <cstdint>
#include <span>

#include "packhorse/export.h"
#include "packhorse/types.h"

namespace packhorse {

/// A CUDA stream, numbered as DLPack does: 0 none, 1 the legacy default stream, 2 the per-thread
/// default stream, else a cudaStream_t. It must live until the work ordered against it is done.
using StreamHandle = uintptr_t;

/// Borrowed view of one packed batch in the device's memory; arrays as in PackedTokens.
struct DeviceTokens {
  const int32_t* ids = nullptr;           // [num_tokens]
  const int32_t* cu_seqlens = nullptr;    // [num_sequences + 1]
  const int32_t* type_ids = nullptr;      // [num_tokens] or null
  const int32_t* position_ids = nullptr;  // [num_tokens] or null
  int64_t num_tokens = 0;
  int64_t num_sequences = 0;
  std::span<const int32_t> prediction_rows = {};  // in host memory
};

/// A result in the device's memory. The memory is another run's again when the last DeviceArray of
/// its run is gone: not before, and not before the work that every stream of `make_ready_on` had
/// been asked by then. Methods may be called from any thread.
class PACKHORSE_API DeviceArray {
 public:
  virtual ~DeviceArray() = default;

  Device device() const { return device_; }
  const TensorView& view() const { return view_; }
  /// The stream that the run was ordered with; 1, the legacy default stream, where it had none.
  StreamHandle stream() const { return stream_ == 0 ? 1 : stream_; }
  /// What `stream` is asked from now on finds the result complete. The host does not wait.
  virtual void make_ready_on(StreamHandle stream) = 0;
  /// Waits for the result and copies it as float32 to `to`. Throws as `check` does.
  virtual void read(float* to) = 0;
  /// Waits for the run. Throws InvalidArgument naming what the device found wrong in its batch.
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
