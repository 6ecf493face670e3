#include "generation/engine/adapter_names.h"

#include <algorithm>

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += concat(text.empty() ? "'" : ", '", name, "'");
  return text;
}

}  // namespace

std::vector<const AdapterNames::Slot*> AdapterNames::published() const {
  std::vector<const Slot*> found;
  for (const Slot& slot : slots_) {
    if (slot.state == State::kPublished) found.push_back(&slot);
  }
  std::ranges::sort(found, {}, &Slot::salt);
  return found;
}

AdapterNames::Slot& AdapterNames::find(const std::string& name) {
  for (Slot& slot : slots_) {
    if (slot.state == State::kPublished && slot.name == name) return slot;
  }
  std::vector<std::string> known;
  for (const Slot* slot : published()) known.push_back(slot->name);
  throw InvalidArgument(concat("adapter is '", name, "', expected ",
                               slots_.empty()  ? "none: the session was loaded with max_adapters 0"
                               : known.empty() ? "none: no adapter has been added"
                                               : concat("one of ", list(known))));
}

std::shared_ptr<const AdapterNames::Lease> AdapterNames::lease(const std::string& name) {
  const std::lock_guard lock(mutex_);
  Slot& slot = find(name);
  const auto number = static_cast<int32_t>(&slot - slots_.data());
  const auto end = [this](const Lease* lease) {
    end_lease(lease->slot);
    delete lease;
  };
  auto lease = std::make_unique<Lease>(Lease{number, slot.salt});
  ++slot.leases;
  return {lease.release(), end};
}

void AdapterNames::end_lease(int32_t number) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[static_cast<size_t>(number)];
  if (--slot.leases == 0 && slot.state == State::kRemoved) slot.state = State::kFree;
}

int32_t AdapterNames::reserve(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (name.empty()) throw InvalidArgument("the name of an adapter is empty, expected a text");
  std::vector<std::string> taken;
  Slot* free = nullptr;
  for (Slot& slot : slots_) {
    const bool named = slot.state == State::kPublished || slot.state == State::kReserved;
    if (named && slot.name == name) {
      throw InvalidArgument(concat("there is an adapter '", name,
                                   "' already: remove it first, or take another name"));
    }
    if (slot.state == State::kFree && free == nullptr) free = &slot;
    taken.push_back(slot.name);
    if (slot.state == State::kRemoved) taken.back() += " (removed, still in use)";
  }
  if (slots_.empty()) {
    throw RuntimeError("this session takes no adapters: load it with max_adapters over 0");
  }
  if (free == nullptr) {
    throw RuntimeError(concat("no slot is free for adapter '", name, "': max_adapters is ",
                              slots_.size(), ", taken by ", list(taken),
                              "; remove one, or wait for the requests of a removed one"));
  }
  *free = {.state = State::kReserved, .name = name, .salt = next_salt_++};
  return static_cast<int32_t>(free - slots_.data());
}

void AdapterNames::publish(int32_t slot) {
  const std::lock_guard lock(mutex_);
  slots_[static_cast<size_t>(slot)].state = State::kPublished;
}

void AdapterNames::drop(int32_t slot) {
  const std::lock_guard lock(mutex_);
  slots_[static_cast<size_t>(slot)].state = State::kFree;
}

void AdapterNames::remove(const std::string& name) {
  const std::lock_guard lock(mutex_);
  Slot& slot = find(name);
  slot.state = slot.leases > 0 ? State::kRemoved : State::kFree;
}

std::vector<std::string> AdapterNames::names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const Slot* slot : published()) names.push_back(slot->name);
  return names;
}

}  // namespace packhorse
