// The CPU backend: x86-64, dense layers by oneDNN, the rest by our own vector kernels.
#pragma once

#include <memory>

#include "ops/backend.h"
#include "ops/ops.h"

namespace packhorse {

/// Throws InvalidArgument (threads) or RuntimeError (threads cannot be started). Ops of the result
/// may be called from any thread; concurrent calls queue.
std::unique_ptr<Ops> make_cpu_ops(const BackendOptions& options);

}  // namespace packhorse
