// Lets a program interrupt a run before it is done.
#pragma once

#include "packhorse/export.h"

namespace packhorse {

/// Returns whether the run that calls it should end.
using InterruptQuery = bool (*)();

/// Sets a function that sessions on the CPU call before each layer, in the thread that called
/// `run`. If it returns true, the run throws Interrupted. Null, which is the default, means that no
/// function is called.
///
/// There is one query for the whole process. It must be cheap, must not throw, and must not run the
/// session that calls it. Sessions on CUDA devices do not call it during runs, because these are
/// queued and short. On every device, a call that waits for another thread's run of the same
/// session calls it every 50 ms.
PACKHORSE_API void set_interrupt_query(InterruptQuery query);

}  // namespace packhorse
