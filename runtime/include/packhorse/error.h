// The errors that Packhorse throws, as a family of classes over the standard exceptions.
//
// Every class also derives from the std exception of the matching kind, so that callers may catch
// either `packhorse::Error` or the std class, and Cython's `except +` raises the matching Python
// type.
#pragma once

#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "packhorse/export.h"

namespace packhorse {

/// The base class of all errors. `message()` says what is wrong, what was found and what was
/// expected.
class PACKHORSE_API Error {
 public:
  virtual ~Error() = default;
  virtual const std::string& message() const noexcept = 0;
};

namespace detail {
template <class StdException>
class PACKHORSE_API ErrorOver : public StdException, public Error {
 public:
  explicit ErrorOver(std::string message)
      : StdException(message.c_str()), message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }
  const std::string& message() const noexcept override { return message_; }

 private:
  std::string message_;
};
}  // namespace detail

/// An argument, a spec or a weight file is not acceptable (Python: ValueError).
class PACKHORSE_API InvalidArgument : public detail::ErrorOver<std::invalid_argument> {
  using ErrorOver::ErrorOver;
};

/// The machine, a driver or a library failed, or cannot do what was asked (Python: RuntimeError).
class PACKHORSE_API RuntimeError : public detail::ErrorOver<std::runtime_error> {
  using ErrorOver::ErrorOver;
};

/// A run was interrupted before it was done (packhorse/interrupt.h). Its outputs are incomplete.
class PACKHORSE_API Interrupted : public detail::ErrorOver<std::runtime_error> {
  using ErrorOver::ErrorOver;
};

/// The memory limit or the memory of the device is not sufficient (Python: MemoryError).
class PACKHORSE_API OutOfMemory : public std::bad_alloc, public Error {
 public:
  explicit OutOfMemory(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }
  const std::string& message() const noexcept override { return message_; }

 private:
  std::string message_;
};

}  // namespace packhorse
