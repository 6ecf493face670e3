// The product of gate and `up` in a gated feed-forward block.
#pragma once

#include "cuda/device/stream.h"
#include "ops/args.h"

namespace packhorse::cuda {

/// out[r, c] = activation(gate[r, c]) * up[r, c]
struct GateParams {
  const void* x = nullptr;  // [rows, 2 columns], contiguous: kGateBlock of gate, of up, in turn
  void* out = nullptr;      // [rows, columns], contiguous
  int64_t rows = 0;
  int64_t columns = 0;                 // a multiple of kGateBlock
  const int32_t* row_count = nullptr;  // exact number of rows in device memory, or null
  DType dtype = DType::kFloat16;
  Activation activation = Activation::kNone;
};

void launch_gate(const GateParams& params, const KernelStream& stream);

}  // namespace packhorse::cuda
