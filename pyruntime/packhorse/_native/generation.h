// Calls from the engine's thread to Python: news of requests, without the interpreter lock, and
// masks of tokens, the only calls that take it.
#pragma once

#include <Python.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "packhorse/_native/arrays.h"
#include "packhorse/generation.h"

namespace packhorse::python {

/// Collects which of several requests have news. Its file descriptor can be read while there are
/// any, so that an event loop, or a thread, can wait for them.
class Mailbox {
 public:
  Mailbox() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  }
  ~Mailbox() { close(fd_); }
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  int fd() const { return fd_; }

  /// Says that the request with this number has news.
  void post(size_t number) {
    const std::lock_guard lock(mutex_);
    if (number >= posted_.size()) posted_.resize(number + 1);
    if (posted_[number]) return;
    posted_[number] = true;
    news_.push_back(number);
    const uint64_t one = 1;
    static_cast<void>(!write(fd_, &one, sizeof(one)));  // a full counter can be read as well
  }

  /// The numbers that were posted since the last time, in order.
  std::vector<size_t> take() {
    const std::lock_guard lock(mutex_);
    uint64_t count = 0;
    static_cast<void>(!read(fd_, &count, sizeof(count)));
    for (const size_t number : news_) posted_[number] = false;
    return std::exchange(news_, {});
  }

 private:
  const int fd_;
  std::mutex mutex_;
  std::vector<bool> posted_;
  std::vector<size_t> news_;
};

/// From now on news of the request are posted under `number`.
inline void listen(GenerationRequest& request, std::shared_ptr<Mailbox> mailbox, size_t number) {
  request.set_listener([mailbox = std::move(mailbox), number] { mailbox->post(number); });
}

inline void stop_listening(GenerationRequest& request) { request.set_listener({}); }

/// Calls of masks that run, and whether the interpreter is about to end. An engine's thread that
/// asks for its lock then would never get it, and a session that waits for that thread never end.
inline std::atomic<int> calls_of_masks = 0;
inline std::atomic<bool> interpreter_ends = false;

/// Forbids calls of masks, and waits for those that run.
inline void end_masks() {
  interpreter_ends = true;
  while (const int calls = calls_of_masks) calls_of_masks.wait(calls);
}

/// In a forked child, which has none of the threads that ran masks.
inline void forget_calls_of_masks() { calls_of_masks = 0; }

/// Takes the interpreter lock for the lifetime of the object. Throws RuntimeError where the
/// interpreter is about to end.
class Locked {
 public:
  Locked() : state_(lock()) {}
  ~Locked() {
    PyGILState_Release(state_);
    end_call();
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  static PyGILState_STATE lock() {
    ++calls_of_masks;
    if (!interpreter_ends) return PyGILState_Ensure();
    end_call();
    throw RuntimeError("the interpreter ends");
  }
  static void end_call() {
    --calls_of_masks;
    calls_of_masks.notify_all();
  }

  const PyGILState_STATE state_;
};

/// The session, for one call of Python. The last reference to a session waits for the engine's
/// thread, which may need the interpreter lock to end: it is dropped without that lock.
class OpenSession {
 public:
  OpenSession() = default;
  explicit OpenSession(std::shared_ptr<GenerationSession> session) : session_(std::move(session)) {}
  OpenSession(OpenSession&&) = default;
  OpenSession& operator=(OpenSession&&) = default;
  ~OpenSession() {
    if (session_ == nullptr) return;
    PyThreadState* const state = PyEval_SaveThread();
    session_.reset();
    PyEval_RestoreThread(state);
  }

  GenerationSession& operator*() const { return *session_; }

 private:
  std::shared_ptr<GenerationSession> session_;
};

/// A new reference, or null where a Python exception is set; dropped with the lock held.
using Owned = std::unique_ptr<PyObject, decltype(&Py_DecRef)>;

inline Owned own(PyObject* object) { return {object, &Py_DecRef}; }

/// The text of a str, or null where there is none.
inline const char* utf8(PyObject* text) {
  return text == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(text, nullptr);
}

/// The Python exception that is set, as one of ours: "TypeError: ...".
[[noreturn]] inline void rethrow() {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  const Owned owned_type = own(type), owned_value = own(value), owned_traceback = own(traceback);
  std::string message = "a mask of tokens raised an exception";
  if (value != nullptr) {
    const Owned name = own(PyObject_GetAttrString(type, "__name__"));
    if (const char* bytes = utf8(name.get())) message = bytes;
    const Owned text = own(PyObject_Str(value));
    const char* bytes = utf8(text.get());
    if (bytes != nullptr) message += std::string(": ") + bytes;
  }
  PyErr_Clear();
  throw RuntimeError(message);
}

/// A memoryview that ends with the object: whoever has kept it gets ValueError for its use.
class LentView {
 public:
  explicit LentView(PyObject* view) : view_(own(view)) {
    if (!view_) rethrow();
  }
  ~LentView() {
    // It stays where somebody holds an array over it.
    if (!own(PyObject_CallMethod(view_.get(), "release", nullptr))) PyErr_Clear();
  }
  LentView(const LentView&) = delete;
  LentView& operator=(const LentView&) = delete;

  PyObject* get() const { return view_.get(); }

 private:
  const Owned view_;
};

/// The object of Python that Sampling.mask names.
class PythonMask final : public TokenMask {
 public:
  /// The caller holds the interpreter lock.
  explicit PythonMask(PyObject* mask) : mask_(mask) { Py_INCREF(mask_); }
  ~PythonMask() override {
    try {
      const Locked locked;
      Py_DECREF(mask_);
    } catch (const RuntimeError&) {
      // The object stays, as others do when the interpreter ends.
    }
  }
  PythonMask(const PythonMask&) = delete;
  PythonMask& operator=(const PythonMask&) = delete;

  bool fill(std::span<uint32_t> words) override {
    const Locked locked;
    // Memory of Python's own, which lives as long as anybody there refers to it.
    const Owned memory = own(PyByteArray_FromStringAndSize(
        reinterpret_cast<const char*>(words.data()), static_cast<Py_ssize_t>(words.size_bytes())));
    if (!memory) rethrow();
    const LentView bytes(PyMemoryView_FromObject(memory.get()));
    const LentView view(PyObject_CallMethod(bytes.get(), "cast", "s", "I"));
    const Owned restricts = own(PyObject_CallMethod(mask_, "fill", "O", view.get()));
    if (!restricts) rethrow();
    const int truth = PyObject_IsTrue(restricts.get());
    if (truth < 0) rethrow();
    std::memcpy(words.data(), PyByteArray_AsString(memory.get()), words.size_bytes());
    return truth != 0;
  }

  void accept(int32_t token) override {
    const Locked locked;
    if (!own(PyObject_CallMethod(mask_, "accept", "i", static_cast<int>(token)))) rethrow();
  }

  std::unique_ptr<TokenMask> fork() const override {
    const Locked locked;
    if (PyObject_HasAttrString(mask_, "fork") == 0) return nullptr;
    const Owned copy = own(PyObject_CallMethod(mask_, "fork", nullptr));
    if (!copy) rethrow();
    return std::make_unique<PythonMask>(copy.get());
  }

 private:
  PyObject* const mask_;
};

/// A copy of the numbers of a float32 array [frames, columns].
inline std::shared_ptr<const SourceFeatures> source_features(PyObject* array, int64_t columns) {
  const std::span<const float> values = float_values(array);
  return std::make_shared<const SourceFeatures>(
      SourceFeatures{.values = {values.begin(), values.end()}, .columns = columns});
}

inline std::shared_ptr<TokenMask> make_mask(PyObject* mask) {
  return std::make_shared<PythonMask>(mask);
}

}  // namespace packhorse::python
