// Checks everything about a request that can be wrong, before the session's lock is taken and
// before anything is copied. Code that runs after these checks trusts its input.
#pragma once

#include <sys/types.h>

#include "packhorse/session.h"
#include "session/loaded_model.h"

namespace packhorse {

class RequestValidator {
 public:
  /// `model` must outlive this object.
  explicit RequestValidator(const LoadedModel& model);

  /// Throws RuntimeError if this process was forked from the one that loaded the session.
  void check_process() const;
  /// Checks one request. `wanted` holds a null pointer or false for each output that is not wanted.
  /// Throws as check_process does, and InvalidArgument naming what was found and what was expected.
  /// If the batch lies on the device, only its sizes and pointers are checked here; a kernel checks
  /// the rest.
  template <class Tokens, class Value>
  void check(const Tokens& tokens, const PerOutput<Value>& wanted) const {
    check_process();
    for (size_t i = 0; i < kOutputNames.size(); ++i) {
      if (wanted[i] && !model_.layouts[i].exists()) refuse_output(kOutputNames[i]);
    }
    check_tokens(tokens);
  }
  /// Access to arrays and streams that others own. Throws InvalidArgument on the CPU.
  DeviceIo& io() const;

 private:
  [[noreturn]] void refuse_output(const char* name) const;
  void check_tokens(const PackedTokens& tokens) const;
  void check_tokens(const DeviceTokens& tokens) const;
  void check_tokens(const PackedPatches& patches) const;
  void check_tokens(const DevicePatches& patches) const;
  // Throws InvalidArgument unless the model takes batches of this kind.
  void check_kind(bool patches) const;
  void check_positions(bool given) const;

  const LoadedModel& model_;
  const pid_t process_;
};

}  // namespace packhorse
