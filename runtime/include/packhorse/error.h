// Errors of Packhorse: one family over the standard exceptions.
//
// Every class is also a std exception of the matching kind, so that callers may catch either
// `packhorse::Error` or the std base, and Cython's `except +` raises the natural Python type.
#pragma once

#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "packhorse/export.h"

namespace packhorse {

/// Base of the family; `message()` says what is wrong, with what was found and what was expected.
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

/// An argument, a config or a weight file is not acceptable (Python: ValueError).
class PACKHORSE_API InvalidArgument : public detail::ErrorOver<std::invalid_argument> {
  using ErrorOver::ErrorOver;
};

/// The machine, driver or a library failed, or cannot do what was asked (Python: RuntimeError).
class PACKHORSE_API RuntimeError : public detail::ErrorOver<std::runtime_error> {
  using ErrorOver::ErrorOver;
};

/// A run was ended before it was done, as packhorse/interrupt.h says. Its outputs are incomplete.
class PACKHORSE_API Interrupted : public detail::ErrorOver<std::runtime_error> {
  using ErrorOver::ErrorOver;
};

/// The memory limit or the device's memory does not suffice (Python: MemoryError).
class PACKHORSE_API OutOfMemory : public std::bad_alloc, public Error {
 public:
  explicit OutOfMemory(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }
  const std::string& message() const noexcept override { return message_; }

 private:
  std::string message_;
};

}  // namespace packhorse
