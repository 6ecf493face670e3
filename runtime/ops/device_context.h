// Everything that a device offers besides operators: memory, transfers, graphs, timing and
// threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ops/device_io.h"
#include "packhorse/export.h"
#include "packhorse/types.h"

namespace packhorse {

/// A piece of device memory, which is freed with the object.
class PACKHORSE_API DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 protected:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Copy of `rows` rows of `bytes` bytes, each `stride` bytes behind the one before, at both places.
/// Places and the stride are multiples of 16.
struct DeviceCopy {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
  size_t stride = 0;
  int64_t rows = 1;
};

/// Host memory that repeatedly fills one place on the device, with no further copy on the way.
class PACKHORSE_API UploadBuffer {
 public:
  virtual ~UploadBuffer() = default;
  /// Returns where the host writes the next contents. Waits until the device has read the previous
  /// ones.
  virtual void* acquire() = 0;
  /// Transfers the first `bytes` bytes to the device.
  virtual void send(size_t bytes) = 0;
};

/// Takes the large arrays of runs, such as patches of images, to one place on the device.
class PACKHORSE_API InputUpload {
 public:
  virtual ~InputUpload() = default;
  /// Transfers `bytes` bytes. `stays`: the caller leaves the array as it is until the next
  /// `synchronize`, so that the device may read it where it lies. Otherwise it has been copied when
  /// this returns.
  virtual void send(const void* host_from, size_t bytes, bool stays) = 0;
};

/// A fixed sequence of operators that a device can run again in one launch (a CUDA graph). Buffers
/// and sizes are those at the time of graph; the contents of the buffers are read at each
/// launch.
class PACKHORSE_API DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void launch() = 0;
};

/// Host memory through which a device gets inputs and gives results, round after round: each round
/// has one of kSlots slots, in turn. A round is `acquire`, `send`, operators or a graph of
/// them, and `fetch`. It is waited for by itself. A round that was not fetched, because something
/// before has failed, is forgotten: its slot is that of the next one.
class PACKHORSE_API HostDeviceRing {
 public:
  /// Rounds that may be under way at once.
  static constexpr size_t kSlots = 2;
  virtual ~HostDeviceRing() = default;

  /// Returns where the host writes the inputs of the next round, for which there must be a slot.
  virtual void* acquire() = 0;
  /// Transfers the first `bytes` bytes of inputs to the device.
  virtual void send(size_t bytes) = 0;
  /// Asks for a copy of the first `bytes` bytes of results, which may be 0. The round is under way.
  /// The copy may be made as late as at the next `send` or at the round's `wait`, until which
  /// nothing may write the results.
  virtual void fetch(size_t bytes) = 0;
  /// Waits for the oldest round under way, and for all work before it, and returns its results.
  /// They are valid until kSlots more rounds are under way. Throws the error of work that failed.
  virtual const void* wait() = 0;
  /// Waits until the device writes no more, and forgets all rounds.
  virtual void drop() noexcept = 0;
};

/// The largest batch that one graph serves.
struct GraphBounds {
  int64_t num_tokens = 0;
  int64_t max_seqlen = 0;
  int64_t min_seqlen = 0;  // the shortest sequence that has tokens; 0: any
};

/// One device. Transfers and graphs of a CUDA device are asynchronous on its stream, as its
/// operators are; those of the CPU are done when they return.
class PACKHORSE_API DeviceContext {
 public:
  virtual ~DeviceContext() = default;

  virtual Device device() const = 0;

  /// Throws OutOfMemory, whose message says how much was asked for and how much was free.
  virtual std::unique_ptr<DeviceMemory> allocate(size_t bytes) = 0;
  /// Has the system give, and clear, all of memory that is about to be filled. On a host it would
  /// do so when the memory is first written, and threads that write neighbouring bytes would each
  /// clear a huge page of which one is kept.
  virtual void populate(DeviceMemory& /*memory*/, size_t /*bytes*/) {}
  virtual void upload(void* device_to, const void* host_from, size_t bytes) = 0;
  /// Writes `host_to` at the next `synchronize` or earlier.
  virtual void download(void* host_to, const void* device_from, size_t bytes) = 0;
  /// Cancels all downloads since the last `synchronize`: they no longer write to host memory. Waits
  /// for uploads that read an array of the caller.
  virtual void drop_downloads() noexcept {}
  /// Copies within the device's memory, all at the same time: none writes what it reads, or what
  /// another one reads or writes.
  virtual void copy(std::span<const DeviceCopy> copies) = 0;
  /// Bytes that could be allocated now, about.
  virtual size_t free_bytes() const = 0;
  virtual std::unique_ptr<UploadBuffer> make_upload_buffer(void* device_to, size_t bytes) = 0;
  /// `bytes`: the size of the largest array. What its transfers need is allocated now.
  virtual std::unique_ptr<InputUpload> make_input_upload(void* device_to, size_t bytes) = 0;
  /// `inputs`, `results`: device addresses. `*_bytes`: their capacities.
  virtual std::unique_ptr<HostDeviceRing> make_ring(void* inputs, size_t input_bytes,
                                                    const void* results, size_t result_bytes) = 0;
  /// True where transfers and operators may return before they are done.
  virtual bool asynchronous() const { return false; }
  /// Waits until all work asked for so far is done. Throws the error of any of that work that
  /// failed.
  virtual void synchronize() = 0;

  /// Rows of a dense layer that take as long to compute as 16-bit weights take to be read, about:
  /// the device's operations a second over the bytes that it reads in one.
  virtual int64_t balanced_rows() const = 0;

  /// The sizes for which graphs should be made, so that every batch up to `max_tokens` and
  /// `max_seqlen` finds a graph that suits it, in ascending order of num_tokens, then of
  /// max_seqlen, then with the largest min_seqlen first. Empty if graphs gain nothing on this
  /// device.
  virtual std::vector<GraphBounds> graph_bounds(int64_t /*max_tokens*/,
                                                int64_t /*max_seqlen*/) const {
    return {};
  }
  /// Records the operators that `work` asks for, without running them. `work` must have run once
  /// before, because what is created at first use cannot be created during a graph. Only
  /// devices with `graph_bounds` implement this.
  virtual std::unique_ptr<DeviceGraph> record(const std::function<void()>& /*work*/) {
    return nullptr;
  }

  /// Runs `work` and returns how many milliseconds the device spent on it.
  virtual double elapsed_ms(const std::function<void()>& work) = 0;

  /// Calls body(i) for every i in [0, count): independent pieces of host work, spread over the
  /// backend's threads if it has any. Throws the first exception that a body throws.
  virtual void for_each(int64_t count, const std::function<void(int64_t)>& body) {
    for (int64_t i = 0; i < count; ++i) body(i);
  }

  /// Access to arrays and streams that others own. Null if the device's memory is host memory.
  virtual DeviceIo* io() { return nullptr; }
};

/// Ends unfinished transfers of the caller's memory when an exception leaves the scope, because
/// that memory may be freed by then.
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
