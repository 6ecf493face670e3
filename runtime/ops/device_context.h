// What a device is beside its operators: memory, transfers, recordings, timing and threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ops/device_io.h"
#include "packhorse/export.h"
#include "packhorse/types.h"

namespace packhorse {

/// Memory of a device, freed with the object.
class PACKHORSE_API DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 protected:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Host memory from which one place on the device is filled again and again, without another copy
/// on the way.
class PACKHORSE_API UploadBuffer {
 public:
  virtual ~UploadBuffer() = default;
  /// Where the host writes what is to go next. Waits until the device has read what was there.
  virtual void* acquire() = 0;
  /// The first `bytes` of it go to the device.
  virtual void send(size_t bytes) = 0;
};

/// A fixed sequence of ops that a device can run again in one launch (a CUDA graph). Buffers and
/// sizes are those of the recording; what lies in the buffers is read anew.
class PACKHORSE_API Recording {
 public:
  virtual ~Recording() = default;
  virtual void launch() = 0;
};

/// The largest batch that one recording serves.
struct RecordingBounds {
  int64_t num_tokens = 0;
  int64_t max_seqlen = 0;
};

/// Transfers and recordings of a CUDA device are asynchronous on its stream, as its ops are; the
/// CPU's are done when they return.
class PACKHORSE_API DeviceContext {
 public:
  virtual ~DeviceContext() = default;

  virtual Device device() const = 0;

  /// Throws OutOfMemory naming what was asked and what was free.
  virtual std::unique_ptr<DeviceMemory> allocate(size_t bytes) = 0;
  virtual void upload(void* device_to, const void* host_from, size_t bytes) = 0;
  /// `host_to` is written at the next `synchronize`, or before.
  virtual void download(void* host_to, const void* device_from, size_t bytes) = 0;
  /// Downloads that were not synchronised write nothing any more.
  virtual void drop_downloads() noexcept {}
  virtual std::unique_ptr<UploadBuffer> make_upload_buffer(void* device_to, size_t bytes) = 0;
  /// Waits until everything asked so far is done; reports what failed meanwhile.
  virtual void synchronize() = 0;

  /// What recordings should be made for, so that every batch up to these sizes finds one that suits
  /// it: ascending in num_tokens, then in max_seqlen. Empty where the device gains nothing by them.
  virtual std::vector<RecordingBounds> recording_bounds(int64_t /*max_tokens*/,
                                                        int64_t /*max_seqlen*/) const {
    return {};
  }
  /// Records the ops that `work` asks for, without running them. `work` must have run once before,
  /// so that nothing is made at first use. For devices with recording_bounds.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& /*work*/) {
    return nullptr;
  }

  /// Milliseconds that the device spends on what `work` asks for.
  virtual double elapsed_ms(const std::function<void()>& work) = 0;

  /// body(i) for every i in [0, count): host work in independent pieces, spread over the threads of
  /// the backend where it has any. Throws the first exception of a body.
  virtual void for_each(int64_t count, const std::function<void(int64_t)>& body) {
    for (int64_t i = 0; i < count; ++i) body(i);
  }

  /// Arrays and streams of others; null where the device's memory is the host's.
  virtual DeviceIo* io() { return nullptr; }
};

/// What was downloaded and not synchronised when an exception leaves the scope is dropped: the
/// memory that it should have gone to may be gone, too.
class DownloadScope {
 public:
  explicit DownloadScope(DeviceContext& device) : device_(device) {}
  ~DownloadScope() { device_.drop_downloads(); }
  DownloadScope(const DownloadScope&) = delete;
  DownloadScope& operator=(const DownloadScope&) = delete;

 private:
  DeviceContext& device_;
};

}  // namespace packhorse
