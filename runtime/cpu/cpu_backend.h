// The CPU backend: x86-64, dense layers by oneDNN, the rest by our own vector kernels.
#pragma once

#include "ops/backend.h"

namespace packhorse {

/// Throws InvalidArgument (threads) or RuntimeError (threads cannot be started). What it gives may
/// be called from any thread; concurrent calls queue.
Backend make_cpu_backend(const BackendOptions& options);

}  // namespace packhorse
