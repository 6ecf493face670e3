// Results that stay on the device: planned slots, leased by runs until their consumers let go.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "core/arena.h"
#include "model/heads/outputs.h"
#include "ops/device_context.h"

namespace packhorse {

/// Takes `count` slots from the arena (count pass and carve pass alike). `dtype`: the model's.
std::vector<OutputBuffers> take_output_slots(const PerOutput<OutputLayout>& layouts,
                                             const Capacity& capacity, DType dtype, int count,
                                             Arena& arena);

class OutputLease;

class OutputSlots {
 public:
  /// `io`: of the device that the slots lie on; null where there are none.
  OutputSlots(const std::vector<OutputBuffers>& slots, DeviceIo* io);
  ~OutputSlots();
  OutputSlots(const OutputSlots&) = delete;
  OutputSlots& operator=(const OutputSlots&) = delete;

  /// A slot that nobody uses; the device's stream waits until its last readers are done. `session`
  /// lives as long as the lease. Throws RuntimeError where none is free.
  std::shared_ptr<OutputLease> lease(std::shared_ptr<void> session);

 private:
  friend class OutputLease;
  struct Slot {
    Slot(const OutputBuffers& outputs, InputFinding* input_finding, DeviceIo& io)
        : buffers(outputs), finding(input_finding), readers(io) {}
    OutputBuffers buffers;
    InputFinding* finding;
    Readers readers;
    bool leased = false;
  };
  DeviceIo* io_;
  std::unique_ptr<DeviceMemory> findings_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::mutex mutex_;
};

/// One slot in use; gives it back when it is gone, from any thread.
class OutputLease {
 public:
  OutputLease(std::shared_ptr<void> session, OutputSlots& slots, OutputSlots::Slot& slot);
  ~OutputLease();
  OutputLease(const OutputLease&) = delete;
  OutputLease& operator=(const OutputLease&) = delete;

  const OutputBuffers& buffers() const { return slot_.buffers; }
  /// Of the run that has the lease, where its number is that run's.
  InputFinding* finding() const { return slot_.finding; }
  /// The results are complete when the device's stream comes to where it is now.
  void complete();
  void make_ready_on(StreamHandle stream);
  void wait() { done_->synchronize(); }

 private:
  std::shared_ptr<void> session_;  // first: it owns the rest
  OutputSlots& slots_;
  OutputSlots::Slot& slot_;
  std::unique_ptr<DeviceEvent> done_;
};

}  // namespace packhorse
