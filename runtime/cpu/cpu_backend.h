// The CPU backend for x86-64. oneDNN computes dense layers in bfloat16 and int8; our own vector
// kernels compute everything else.
#pragma once

#include "ops/backend.h"

namespace packhorse {

/// Makes a backend. Throws InvalidArgument for a wrong number of threads and RuntimeError if
/// threads cannot be started. The backend may be called from any thread; concurrent calls wait for
/// each other.
Backend make_cpu_backend(const BackendOptions& options);

}  // namespace packhorse
