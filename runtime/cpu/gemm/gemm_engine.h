// Dense layers in bfloat16 and int8, which each kind of processor computes in its own way: x86-64
// by oneDNN's matmul (x86/onednn_gemm.cc, x86/onednn_int8.cc) and, in int8 without AVX-512, as
// aarch64 by our own kernels
// (gemm_panels.cc). The build takes one of the two folders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cpu/gemm/gemm_shape.h"
#include "cpu/threads/thread_pool.h"

namespace packhorse::cpu {

class GemmEngine {
 public:
  virtual ~GemmEngine() = default;
  /// Makes a layer in bfloat16, or one in int8 (gemm/int8/int8.h). Throws RuntimeError if there is
  /// no kernel for the shape.
  virtual std::unique_ptr<Gemm> make(const DenseShape& shape) = 0;
};

/// Makes an engine whose layers up to `workers` threads run at once.
std::unique_ptr<GemmEngine> make_gemm_engine(int workers);

/// The bytes of a weight matrix in bfloat16 or int8, packed panel by panel.
size_t packed_panels_bytes(int64_t in_features, int64_t out_features, DType dtype);
/// Packs a matrix [out_features, in_features] of dtype `from`: float32 for bfloat16, int8 for int8.
/// Panels are packed in parallel.
void pack_panels(const void* weight, DType from, int64_t in_features, int64_t out_features,
                 DType dtype, void* packed, ThreadPool& pool);
/// Packs output features [first, first + count) of a matrix in bfloat16, of which `rows`, float32
/// [count, in_features], has only these. `first` is a multiple of panel_width, and so is `count`
/// but at the end of the matrix. Threads may pack different panels at once.
void pack_panel_rows(const float* rows, int64_t first, int64_t count, int64_t in_features,
                     void* packed);

}  // namespace packhorse::cpu
