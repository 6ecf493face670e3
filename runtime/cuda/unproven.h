// Kernels that were compiled and emulated but that no GPU has run yet.
#pragma once

namespace packhorse::cuda {

// Whether such kernels may be chosen: where the environment variable PACKHORSE_UNPROVEN_KERNELS is
// "1", as the tests of tests/gpu set it. Elsewhere the kernels that they are to replace run, and
// features that have no other kernel are refused by name. Read once for each process.
bool unproven_kernels();

}  // namespace packhorse::cuda
