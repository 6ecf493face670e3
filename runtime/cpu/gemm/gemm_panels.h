// Dense layers in bfloat16 and int8 by our own kernels (MultiplyPanels in gemm_kernels.h), which
// give a row its bits whatever the number of rows. On x86-64 they compute in int8, where oneDNN
// lacks AVX-512: its kernels for AVX2 would pack the weight again for every few rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cpu/gemm/gemm_shape.h"
#include "cpu/threads/thread_pool.h"

namespace packhorse::cpu {

/// Returns whether this machine has such kernels in int8.
bool has_own_int8();

/// The bytes of a weight matrix in bfloat16 or int8, packed panel by panel.
size_t own_panels_bytes(int64_t in_features, int64_t out_features, DType dtype);
/// Packs a matrix [out_features, in_features], of float32 for bfloat16 and int8 for int8. Panels
/// are packed in parallel.
void pack_own_panels(const void* weight, int64_t in_features, int64_t out_features, DType dtype,
                     void* packed, ThreadPool& pool);
/// Packs output features [first, first + count) in bfloat16, of which `rows`, float32, has only
/// these. `first` is a multiple of kPanelColumns.
void pack_own_panel_rows(const float* rows, int64_t first, int64_t count, int64_t in_features,
                         void* packed);

std::unique_ptr<Gemm> make_panel_gemm(const DenseShape& shape);

}  // namespace packhorse::cpu
