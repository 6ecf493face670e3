// Signals that arrive during a run: Ctrl-C above all.
#pragma once

#include <Python.h>

#include <chrono>

#include "packhorse/interrupt.h"

namespace packhorse::signals {

using Clock = std::chrono::steady_clock;

inline unsigned long main_thread = 0;     // Python's: the only one that handles signals
inline Clock::time_point last_look = {};  // of that thread

inline bool on_main_thread() { return PyThread_get_thread_ident() == main_thread; }

/// Before a run of the main thread, which holds the interpreter lock: Python has looked just now.
inline void begin_run() { last_look = Clock::now(); }

/// Lets Python handle what has arrived, every 50 ms at most; whether a handler raised. Its
/// exception is set then, and is what Cython raises in place of the Interrupted that the run
/// throws.
inline bool handler_raises() {
  if (!on_main_thread() || Clock::now() - last_look < std::chrono::milliseconds(50)) return false;
  const PyGILState_STATE state = PyGILState_Ensure();
  const bool raised = PyErr_CheckSignals() != 0;
  PyGILState_Release(state);
  last_look = Clock::now();
  return raised;
}

/// Called by the module when it is loaded, and in forked children, whose main thread is another.
inline void watch(unsigned long thread) {
  main_thread = thread;
  set_interrupt_query(handler_raises);
}

}  // namespace packhorse::signals
