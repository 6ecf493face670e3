// Measures what the threads of the CPU backend spend their time on.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "packhorse/export.h"

namespace packhorse {

/// Starts to measure, from zero, all sessions and operators of the process. While measuring is on,
/// it costs some tens of nanoseconds for each kernel call; while it is off, a kernel call only
/// reads a flag.
PACKHORSE_API void start_cpu_profile();

/// Stops measuring and returns the seconds that all threads together spent on each kind of work:
/// "product" (with bias and activation if its kernel computes them), "attention", "norm" (with the
/// residual), "quantize" (conversion of int8 activations to bytes and of sums back, with bias and
/// activation) and "other" (embeddings, gates, rotations, pooling, casts). Time that threads spend
/// otherwise, most of all waiting, is not included.
PACKHORSE_API std::vector<std::pair<std::string, double>> stop_cpu_profile();

}  // namespace packhorse
