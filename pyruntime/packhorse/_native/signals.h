// Handles signals that arrive during a run, most of all Ctrl-C.
#pragma once

#include <Python.h>

#include <chrono>

#include "packhorse/interrupt.h"

namespace packhorse::signals {

using Clock = std::chrono::steady_clock;

inline unsigned long main_thread = 0;     // Python handles signals only in this thread
inline Clock::time_point last_look = {};  // when that thread last checked for signals

inline bool on_main_thread() { return PyThread_get_thread_ident() == main_thread; }

/// Called before a run of the main thread, which holds the interpreter lock. Python has just
/// checked for signals then.
inline void begin_run() { last_look = Clock::now(); }

/// Lets Python handle signals that have arrived, at most every 50 ms. Returns whether a handler
/// raised an exception. That exception is then set, and Cython raises it instead of the Interrupted
/// that the run throws.
inline bool handler_raises() {
  if (!on_main_thread() || Clock::now() - last_look < std::chrono::milliseconds(50)) return false;
  const PyGILState_STATE state = PyGILState_Ensure();
  const bool raised = PyErr_CheckSignals() != 0;
  PyGILState_Release(state);
  last_look = Clock::now();
  return raised;
}

/// Called when the module is loaded, and in forked children, whose main thread is a different one.
inline void watch(unsigned long thread) {
  main_thread = thread;
  set_interrupt_query(handler_raises);
}

}  // namespace packhorse::signals
