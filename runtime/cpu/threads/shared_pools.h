// The thread pools of the process. Sessions and operators with the same options share a pool.
//
// Loops on more than one thread take turns, whichever pool they belong to, so that no more threads
// compute at a time than the largest number asked for. Two sessions that run at once from two
// threads of the caller pass the turn between and inside the loops of their operators, each keeping
// it for at least a millisecond if both want it; the one that waits sleeps. A loop on one thread
// runs on its caller only and never waits, so sessions with `threads` = 1 that run at once use as
// many cores as there are callers. Sessions that were loaded by threads with different affinity
// masks (for example one for each node of a NUMA machine) share nothing, not even the turn.
#pragma once

#include <memory>

#include "cpu/threads/thread_pool.h"

namespace packhorse::cpu {

/// Returns the pool of `threads` threads for the affinity mask of the calling thread. The number
/// includes the caller of a loop; 0 means one thread for each core of the mask. The pool is created
/// when first asked for and destroyed with its last user. A forked child has pools of its own.
///
/// If `pinned`, each worker stays on a core of its own, beginning with the second core of the mask.
/// The caller of a loop is never pinned: the first core is left to it.
///
/// Throws InvalidArgument for a wrong `threads` or for more pinned threads than cores, and
/// RuntimeError if a thread could not be started.
std::shared_ptr<ThreadPool> shared_pool(int threads, bool pinned);

}  // namespace packhorse::cpu
