// The door of a session: everything about a request that can be wrong is found here, before the
// session's lock is taken and before anything is copied. Behind it, code trusts its input.
#pragma once

#include <sys/types.h>

#include "packhorse/session.h"
#include "session/loaded_model.h"

namespace packhorse {

class Door {
 public:
  /// `model` outlives the object.
  explicit Door(const LoadedModel& model);

  /// Throws RuntimeError in a process forked from the one that has loaded the session.
  void check_process() const;
  /// One request; `wanted` has null pointers or false for outputs that are not wanted. Throws as
  /// check_process does, and InvalidArgument naming what was found and what was expected. Of a
  /// batch on the device, the host sees sizes and pointers alone.
  template <class Tokens, class Value>
  void check(const Tokens& tokens, const PerOutput<Value>& wanted) const {
    check_process();
    for (size_t i = 0; i < kOutputNames.size(); ++i) {
      if (wanted[i] && !model_.layouts[i].exists()) refuse_output(kOutputNames[i]);
    }
    check_tokens(tokens);
  }
  /// Arrays and streams of others. Throws InvalidArgument on the CPU.
  DeviceIo& io() const;

 private:
  [[noreturn]] void refuse_output(const char* name) const;
  void check_tokens(const PackedTokens& tokens) const;
  void check_tokens(const DeviceTokens& tokens) const;
  void check_positions(bool given) const;

  const LoadedModel& model_;
  const pid_t process_;
};

}  // namespace packhorse
