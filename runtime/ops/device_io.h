// What a device of its own memory and streams offers beside the ops: batches that already lie
// there, results that stay there, order with the streams of others.
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

/// A point in the work of a stream.
class PACKHORSE_API DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  /// Everything that `stream` has been asked so far. Throws RuntimeError for a stream that cannot
  /// say: one that is being captured, say.
  virtual void record(StreamHandle stream) = 0;
  /// What `stream` is asked from now on runs after it.
  virtual void make_wait(StreamHandle stream) = 0;
  virtual bool is_done() const = 0;
  virtual void synchronize() = 0;
};

/// What a kernel found wrong in a batch that only the device has seen; the first finding of a run.
/// Lies in host memory that the device can write.
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
  uint32_t run;  // whose finding it is; runs count from 1
  Code code;
  int32_t index;
  int32_t found;
  int32_t before;  // the offset before the one found
};

/// Copies a batch to where ops read it, brought into range; reports what was not. A batch whose
/// offsets are wrong becomes one of no tokens and of sequences without any.
struct LoadBatchArgs {
  DeviceTokens from;
  PackedLimits limits;
  int32_t* counts = nullptr;      // {T, B}
  uint32_t* reported = nullptr;   // the run that reported last: 0 before the first
  int32_t* cu_seqlens = nullptr;  // [limits.max_sequences + 1]; those past the batch are T
  int32_t* ids = nullptr;         // these where `from` has them
  int32_t* type_ids = nullptr;
  int32_t* position_ids = nullptr;
  uint32_t run = 0;
  InputFinding* finding = nullptr;
};

/// Throws InvalidArgument, in the words of `check`, where `finding` is of this run.
PACKHORSE_API void check_finding(const InputFinding& finding, uint32_t run, int64_t num_tokens,
                                 const PackedLimits& limits);

/// Asynchronous on the stream of the DeviceContext that it comes from, as the ops are.
class PACKHORSE_API DeviceIo {
 public:
  virtual ~DeviceIo() = default;

  virtual StreamHandle stream() const = 0;
  virtual std::unique_ptr<DeviceEvent> make_event() = 0;
  /// Waits for everything that any stream of the device has been asked.
  virtual void synchronize_device() = 0;
  /// Zeroed host memory that the device can write.
  virtual std::unique_ptr<DeviceMemory> allocate_shared(size_t bytes) = 0;
  /// Throws InvalidArgument where `data` (not null) is no memory of this device, naming what it is.
  virtual void check_pointer(const char* name, const void* data) const = 0;

  virtual void load_batch(const LoadBatchArgs& args) = 0;

  /// What `after` is asked from now on runs after what `before` has been asked so far.
  void order(StreamHandle before, StreamHandle after);
};

/// Streams that read a piece of memory, until they are done with it.
class PACKHORSE_API Readers {
 public:
  explicit Readers(DeviceIo& io) : io_(&io) {}
  void add(StreamHandle stream);
  /// Marks what the streams have been asked so far. Needs no lock of the interpreter, throws never.
  void finish() noexcept;
  /// `stream`, or the host, waits until the readers have come to their marks.
  void make_wait(StreamHandle stream);
  void wait() noexcept;

 private:
  DeviceIo* io_;
  std::mutex mutex_;
  std::vector<std::pair<StreamHandle, std::unique_ptr<DeviceEvent>>> readers_;
  bool unknown_ = false;  // a reader could not say where it is
};

}  // namespace packhorse
