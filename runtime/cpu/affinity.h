// Cores that threads may run on.
#pragma once

#include <vector>

namespace packhorse::cpu {

/// The affinity mask of the calling thread: numbers of its cores, ascending, at least one.
std::vector<int> allowed_cores();

/// Keeps the calling thread on one core. A core that has been taken from the process since is
/// ignored: the thread then runs where it may.
void pin_to_core(int core);

}  // namespace packhorse::cpu
