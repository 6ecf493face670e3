// Threads that take the interpreter lock when the interpreter ends: they sleep for the rest of the
// process.
//
// A daemon thread may be inside an extension module then. Python before 3.14 ends such a thread
// where it asks for the lock, by unwinding its stack. That calls destructors of C++, which may use
// Python without the lock, and aborts the process where one of them had asked for it, as nothing
// may leave a destructor. Python 3.14 lets such a thread sleep instead, and so does this file,
// which every extension module includes before its own code.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <unistd.h>

namespace packhorse::python {

/// Calls `take`, a function of Python that takes the lock, with `arguments`. Does not return where
/// the interpreter ends.
template <class Take, class... Arguments>
auto take_or_sleep(const Take& take, Arguments... arguments) {
  try {
    return take(arguments...);
  } catch (...) {  // the end of the thread: C code throws nothing else
    while (true) pause();
  }
}

}  // namespace packhorse::python

// Cython's code calls these by name.
#define PyEval_RestoreThread(state) ::packhorse::python::take_or_sleep(PyEval_RestoreThread, state)
#define PyGILState_Ensure() ::packhorse::python::take_or_sleep(PyGILState_Ensure)
