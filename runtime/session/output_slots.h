// Results that stay on the device lie in planned slots. A run leases a slot, which is free again
// when all consumers of the results have released it.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "core/arena.h"
#include "model/heads/output_layout.h"
#include "ops/device_context.h"

namespace packhorse {

/// Takes `count` slots from the arena, both when the arena only counts memory and when it carves
/// it. `dtype` is the model's.
std::vector<OutputBuffers> take_output_slots(const PerOutput<OutputLayout>& layouts,
                                             const Capacity& capacity, DType dtype, int count,
                                             Arena& arena);

class OutputLease;

class OutputSlots {
 public:
  /// `io` belongs to the device on which the slots lie; it is null if there are no slots.
  OutputSlots(const std::vector<OutputBuffers>& slots, DeviceIo* io);
  ~OutputSlots();
  OutputSlots(const OutputSlots&) = delete;
  OutputSlots& operator=(const OutputSlots&) = delete;

  /// Leases a slot that nobody uses. The device's stream waits until the slot's previous readers
  /// have finished. `session` is kept alive as long as the lease. Throws RuntimeError if no slot is
  /// free.
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

/// One slot in use. The destructor returns the slot, from any thread.
class OutputLease {
 public:
  OutputLease(std::shared_ptr<void> session, OutputSlots& slots, OutputSlots::Slot& slot);
  ~OutputLease();
  OutputLease(const OutputLease&) = delete;
  OutputLease& operator=(const OutputLease&) = delete;

  const OutputBuffers& buffers() const { return slot_.buffers; }
  /// The error that a kernel found in the batch of the run that holds this lease. It counts only if
  /// `run` in it is the number of that run; otherwise an earlier run left it there.
  InputFinding* finding() const { return slot_.finding; }
  /// Marks the results as complete once the device's stream has done all work asked for so far.
  void complete();
  void make_ready_on(StreamHandle stream);
  void wait() { done_->synchronize(); }

 private:
  std::shared_ptr<void> session_;  // declared first because it owns what the others refer to
  OutputSlots& slots_;
  OutputSlots::Slot& slot_;
  std::unique_ptr<DeviceEvent> done_;
};

}  // namespace packhorse
