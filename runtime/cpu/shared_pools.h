// The thread pools of the process: sessions and operators of the same kind share one.
//
// Loops on more than one thread take turns, whichever pool they are of, so that never more threads
// compute than the largest of the counts asked for. Two sessions that run at once from two threads
// of the caller pass the turn on between and inside the loops of their operators, at the earliest
// after a millisecond if both want it; who waits for it sleeps. A loop on
// one thread runs on its caller alone and waits for nobody: sessions of `threads` = 1 that run at
// once use as many cores as there are callers. Sessions loaded by threads of different affinity
// masks (the nodes of a NUMA machine, say) have nothing in common, not even the turn.
#pragma once

#include <memory>

#include "cpu/thread_pool.h"

namespace packhorse::cpu {

/// The pool of `threads` threads, the caller of a loop among them, for the affinity mask of the
/// calling thread; 0: one thread for each core of the mask. Made when first asked for, gone with
/// its last user; a forked child has pools of its own.
///
/// `pinned`: each worker stays on a core of its own, the second of the mask and those that follow.
/// The caller of a loop is never pinned: the first core is left to it.
///
/// Throws InvalidArgument (`threads`; more pinned threads than cores) or RuntimeError (a thread
/// could not be started).
std::shared_ptr<ThreadPool> shared_pool(int threads, bool pinned);

}  // namespace packhorse::cpu
