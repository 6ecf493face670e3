// What the threads of the CPU backend spend their time on.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "packhorse/export.h"

namespace packhorse {

/// Starts from zero, for all sessions and operators of the process. Measuring costs some tens of
/// nanoseconds for each kernel call; nothing but a flag is looked at while it is off.
PACKHORSE_API void start_cpu_profile();

/// Stops. Seconds of all threads together, by what was computed: "product" (with bias and
/// activation where those are part of its kernel), "attention", "norm" (with the residual),
/// "quantize" (int8: to bytes and back, with bias and activation), "other" (embeddings, gates,
/// rotations, pooling, casts). What a thread does besides, waiting above all, is not in it.
PACKHORSE_API std::vector<std::pair<std::string, double>> stop_cpu_profile();

}  // namespace packhorse
