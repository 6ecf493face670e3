#include "model/output_slots.h"

#include <utility>

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {

std::vector<OutputSlot> take_output_slots(const Spec& spec, const Capacity& capacity, DType dtype,
                                          int count, Ops& ops, Arena& arena) {
  std::vector<OutputSlot> slots;
  if (ops.device_io() == nullptr) return slots;
  for (int i = 0; i < count; ++i) {
    const auto take = [&](const char* name, int64_t rows, int64_t columns, DType type) {
      const auto elements = static_cast<size_t>(rows * columns);
      void* data = arena.take(concat("output_", i, "_", name), elements * size_of(type));
      return TensorView(data, type, rows, columns);
    };
    const int64_t width = spec.hidden_size;
    OutputSlot& slot = slots.emplace_back();
    slot.hidden = take("hidden", capacity.max_tokens, width, dtype);
    slot.embedding = take("embedding", capacity.max_sequences, width, DType::kFloat32);
    if (spec.pooler) slot.pooled = take("pooled", capacity.max_sequences, width, dtype);
    if (spec.classifier) {
      slot.logits = take(
          "logits", spec.classifier->per_token() ? capacity.max_tokens : capacity.max_sequences,
          spec.classifier->num_labels, DType::kFloat32);
    }
  }
  return slots;
}

OutputSlots::OutputSlots(const std::vector<OutputSlot>& slots, Ops& ops) : io_(ops.device_io()) {
  if (slots.empty()) return;
  findings_ = io_->allocate_shared(slots.size() * sizeof(InputFinding));
  auto* finding = static_cast<InputFinding*>(findings_->data());
  for (const OutputSlot& buffers : slots) {
    slots_.push_back(std::make_unique<Slot>(buffers, finding++, *io_));
  }
}

// The memory goes with the session: not before those are done who read it last.
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
