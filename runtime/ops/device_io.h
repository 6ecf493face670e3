// Services of a device with its own memory and streams besides operators: input batches that
// already lie on the device, results that stay there, and synchronisation with streams that others
// own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "packhorse/device_array.h"
#include "packhorse/packed_tokens.h"

namespace packhorse {

class DeviceMemory;

/// A point in the sequence of work on a stream.
class PACKHORSE_API DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  /// Sets the event to the point after all work that `stream` has been asked for so far. Throws
  /// RuntimeError for a stream that does not permit this, for example while it is being captured.
  virtual void record(StreamHandle stream) = 0;
  /// Work that `stream` is asked for from now on runs after the event.
  virtual void make_wait(StreamHandle stream) = 0;
  virtual bool is_done() const = 0;
  virtual void synchronize() = 0;
};

/// The first error that a kernel found in a batch that only the device has seen. It lies in host
/// memory that the device can write.
struct InputFinding {
  enum Code : int32_t {
    kIds,
    kTypeIds,
    kPositionIds,
    kFirstOffset,
    kDecreasingOffset,
    kLastOffset,
    kLength,
  };
  uint32_t run;  // number of the run that it belongs to, counted from 1
  Code code;
  int32_t index;
  int32_t found;
  int32_t before;  // the offset before `found`
};

/// Copies a batch that lies on the device to where operators read it. A kernel clamps ids and
/// positions to their ranges, and reports the first value that is wrong. A batch with wrong offsets
/// becomes one without tokens, all of whose sequences are empty.
struct LoadBatchArgs {
  DeviceTokens from;
  PackedLimits limits;
  int32_t* counts = nullptr;      // [2] receives {T, B}
  uint32_t* reported = nullptr;   // [1] number of the run that reported last, 0 at first
  int32_t* cu_seqlens = nullptr;  // [limits.max_sequences + 1]; filled with T beyond the batch
  int32_t* ids = nullptr;         // this and the next two are written only if `from` has them
  int32_t* type_ids = nullptr;
  int32_t* position_ids = nullptr;
  uint32_t run = 0;
  InputFinding* finding = nullptr;
};

/// Throws InvalidArgument if `finding` belongs to run `run`, with the message that `check` gives
/// for the same error in a batch in host memory.
PACKHORSE_API void check_finding(const InputFinding& finding, uint32_t run, int64_t num_tokens,
                                 const PackedLimits& limits);

/// Access to arrays and streams that others own. Its work is asynchronous on the stream of its
/// DeviceContext, as operators are.
class PACKHORSE_API DeviceIo {
 public:
  virtual ~DeviceIo() = default;

  virtual StreamHandle stream() const = 0;
  virtual std::unique_ptr<DeviceEvent> make_event() = 0;
  /// Waits for the work of all streams of the device.
  virtual void synchronize_device() = 0;
  /// Allocates host memory that the device can write, set to zeros.
  virtual std::unique_ptr<DeviceMemory> allocate_shared(size_t bytes) = 0;
  /// Throws InvalidArgument if `data`, which is not null, is not memory of this device; the message
  /// says what kind of memory it is.
  virtual void check_pointer(const char* name, const void* data) const = 0;

  virtual void load_batch(const LoadBatchArgs& args) = 0;
  /// Copies `count` numbers of a float dtype from anywhere on the device, as float32.
  virtual void load_floats(const void* from, DType dtype, int64_t count, float* to) = 0;

  /// Makes all work that `after` is asked for from now on run after all work that `before` has been
  /// asked for so far.
  void order(StreamHandle before, StreamHandle after);
};

/// The streams that read a piece of memory, kept until they have finished reading.
class PACKHORSE_API Readers {
 public:
  explicit Readers(DeviceIo& io) : io_(&io) {}
  void add(StreamHandle stream);
  /// Records an event on each stream after its work so far. Does not need Python's interpreter lock
  /// and never throws.
  void finish() noexcept;
  /// Makes `stream` (or, with `wait`, the host) wait for the events that `finish` recorded.
  void make_wait(StreamHandle stream);
  void wait() noexcept;

 private:
  DeviceIo* io_;
  std::mutex mutex_;
  std::vector<std::pair<StreamHandle, std::unique_ptr<DeviceEvent>>> readers_;
  bool unknown_ = false;  // whether graph the event of a stream failed
};

}  // namespace packhorse
