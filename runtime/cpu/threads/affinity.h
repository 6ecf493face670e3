// The cores that threads may run on.
#pragma once

#include <vector>

namespace packhorse::cpu {

/// Returns the affinity mask of the calling thread: the numbers of its cores in ascending order, at
/// least one.
std::vector<int> allowed_cores();

/// Keeps the calling thread on one core. If the process may no longer use that core, the call does
/// nothing.
void pin_to_core(int core);

}  // namespace packhorse::cpu
