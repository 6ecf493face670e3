#include "session/output_slots.h"

#include <utility>

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {

std::vector<OutputBuffers> take_output_slots(const PerOutput<OutputLayout>& layouts,
                                             const Capacity& capacity, DType dtype, int count,
                                             Arena& arena) {
  std::vector<OutputBuffers> slots;
  for (int i = 0; i < count; ++i) {
    OutputBuffers& slot = slots.emplace_back();
    for (size_t output = 0; output < kOutputNames.size(); ++output) {
      const OutputLayout& layout = layouts[output];
      if (!layout.exists()) continue;
      slot[output] = arena.take_matrix(concat("output_", i, "_", kOutputNames[output]),
                                       layout.rows(capacity), layout.columns, layout.dtype(dtype));
    }
  }
  return slots;
}

OutputSlots::OutputSlots(const std::vector<OutputBuffers>& slots, DeviceIo* io) : io_(io) {
  if (slots.empty()) return;
  findings_ = io_->allocate_shared(slots.size() * sizeof(InputFinding));
  auto* finding = static_cast<InputFinding*>(findings_->data());
  for (const OutputBuffers& buffers : slots) {
    slots_.push_back(std::make_unique<Slot>(buffers, finding++, *io_));
  }
}

// The session frees the slots' memory after this, so the last readers must have finished.
OutputSlots::~OutputSlots() {
  for (const auto& slot : slots_) slot->readers.wait();
}

std::shared_ptr<OutputLease> OutputSlots::lease(std::shared_ptr<void> session) {
  const std::lock_guard lock(mutex_);
  for (const auto& slot : slots_) {
    if (slot->leased) continue;
    slot->readers.make_wait(io_->stream());
    auto result = std::make_shared<OutputLease>(std::move(session), *this, *slot);
    slot->leased = true;
    return result;
  }
  throw RuntimeError(concat(
      "no output slot is free: all ", slots_.size(),
      " of them hold results that are still in use; release one (result.release(), or let go of "
      "every array made from it), or load the session with output_slots = ",
      slots_.size() + 1, " or more"));
}

OutputLease::OutputLease(std::shared_ptr<void> session, OutputSlots& slots, OutputSlots::Slot& slot)
    : session_(std::move(session)), slots_(slots), slot_(slot), done_(slots.io_->make_event()) {}

OutputLease::~OutputLease() {
  slot_.readers.finish();
  const std::lock_guard lock(slots_.mutex_);
  slot_.leased = false;
}

void OutputLease::complete() { done_->record(slots_.io_->stream()); }

void OutputLease::make_ready_on(StreamHandle stream) {
  done_->make_wait(stream);
  slot_.readers.add(stream);
}

}  // namespace packhorse
