// The stream and the capabilities of the emulated device: those of an H100 with few
// multiprocessors, so that small batches take the ways of large ones.
#pragma once

#include "cuda/device/stream.h"

namespace packhorse::cuda {

inline KernelStream emulated_stream(int sm_count = 4) {
  return {nullptr,
          {.sm = 90,
           .tma = true,
           .wgmma = true,
           .clusters = true,
           .pdl = true,
           .sm_count = sm_count,
           .shared_bytes = size_t{227} << 10}};
}

}  // namespace packhorse::cuda
