// The messages about drivers: no test machine has a driver in every state.
#include "cuda/device/caps.h"
#include "test.h"

using namespace packhorse::cuda;

TEST(cuda_driver_problems) {
  CHECK(driver_problem(0, 13000) ==
        "no NVIDIA driver on this machine; install one for CUDA 13.0 or newer, or use device "
        "'cpu'");
  CHECK(driver_problem(12080, 13010) ==
        "the NVIDIA driver is too old: it runs CUDA 12.8, this build needs 13.1");
}
