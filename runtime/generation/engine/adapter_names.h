// Which adapter lies in which slot, under which name, and who uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace packhorse {

/// Any number of threads may use one object. It outlives the leases that it gives.
class AdapterNames {
 public:
  /// `capacity`: number of slots.
  explicit AdapterNames(int64_t capacity) : slots_(static_cast<size_t>(capacity)) {}

  /// A request's hold on its adapter. The slot is not used again while it lives.
  struct Lease {
    int32_t slot = -1;
    /// Another number for each adapter that was ever there: keys and values of the same tokens
    /// differ. Never 0, which stands for no adapter.
    uint64_t salt = 0;
  };
  /// Throws InvalidArgument naming the adapters that there are.
  std::shared_ptr<const Lease> lease(const std::string& name);

  /// A slot for a new adapter, which nobody can lease yet. Throws InvalidArgument where the name is
  /// empty or taken, and RuntimeError where no slot is free.
  int32_t reserve(const std::string& name);
  /// The adapter of a reserved slot lies there: it can be leased.
  void publish(int32_t slot);
  /// The adapter of a reserved slot could not be loaded.
  void drop(int32_t slot);
  /// From now on nobody can lease it. Its slot is free when the last lease has ended. Throws
  /// InvalidArgument naming the adapters that there are.
  void remove(const std::string& name);
  /// Names of the adapters that can be leased, in the order in which they came.
  std::vector<std::string> names() const;

 private:
  enum class State : uint8_t { kFree, kReserved, kPublished, kRemoved };
  struct Slot {
    State state = State::kFree;
    std::string name;
    uint64_t salt = 0;
    int64_t leases = 0;
  };

  Slot& find(const std::string& name);  // a published one
  void end_lease(int32_t slot);
  std::vector<const Slot*> published() const;

  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
  uint64_t next_salt_ = 1;
};

}  // namespace packhorse
