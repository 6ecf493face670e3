// Ending a run before it is done.
#pragma once

#include "packhorse/export.h"

namespace packhorse {

/// Says whether the run that asks is to end.
using InterruptQuery = bool (*)();

/// Sessions on the CPU ask `query` before each layer, in the thread that called `run`; a run that
/// is told to end throws Interrupted. Null, as at the start: nothing is asked. The query serves the
/// whole process; it must be cheap, throw nothing, and not run the session that asks. Sessions on
/// CUDA devices do not ask during runs, which are queued and short. On every device a call that
/// waits for another thread's run of the same session asks every 50 ms.
PACKHORSE_API void set_interrupt_query(InterruptQuery query);

}  // namespace packhorse
