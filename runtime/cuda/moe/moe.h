// Mixtures of experts and scaled residuals on CUDA.
#pragma once

#include <cstddef>

#include "cuda/device/stream.h"
#include "ops/args/moe.h"

namespace packhorse::cuda {

/// The most experts of a layer: the addresses of their weights are parameters of a kernel.
inline constexpr int kMostCudaExperts = 128;

/// Bytes of workspace for so many rows.
size_t moe_workspace_bytes(const MoeArgs& args);

/// Computes what MoeArgs says, in float16 or bfloat16: an expert is chosen for each row, rows are
/// put in the order of their experts, and two products over all experts follow. Nothing is read by
/// the host, so it may be captured. Sums over k are formed as in every dense layer, 16 elements at
/// a time in ascending order (gemm/gemm.h). Throws RuntimeError.
void launch_moe(const MoeArgs& args, const KernelStream& stream);

/// Computes what AddScaledArgs says.
void launch_add_scaled(const AddScaledArgs& args, const KernelStream& stream);

}  // namespace packhorse::cuda
