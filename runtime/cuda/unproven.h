// Kernels that were compiled and emulated but that no GPU has run yet.
#pragma once

namespace packhorse::cuda {

constexpr bool unproven_kernels() { return true; }

}  // namespace packhorse::cuda
