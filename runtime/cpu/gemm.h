// Dense layers: float32 by our own kernel (gemm_float.cc), bfloat16 and int8 through oneDNN's
// matmul, whose only use this is (gemm.cc, gemm_int8.cc, gemm_kernel.cc).
//
// oneDNN may choose another kernel, or another order of summation, when the number of rows changes.
// So rows are always given in blocks of a few fixed sizes, and columns in panels of a width that
// depends on the layer alone; every kernel runs on the thread that calls it. A block size, or a
// kernel over all panels at once, is used only if a probe shows that a row's bits depend on nothing
// but the row. That also bounds the number of kernels by the number of layer shapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "cpu/gemm_shape.h"
#include "cpu/thread_pool.h"

namespace packhorse::cpu {

/// Instruction sets, as oneDNN sees this machine; its variable ONEDNN_MAX_CPU_ISA caps them.
enum class Isa { kSse41, kAvx2, kAvx512 };
struct CpuFeatures {
  Isa isa = Isa::kSse41;
  bool bfloat16 = false;  // AVX512-BF16, which every processor with AMX-BF16 has too
  bool amx = false;       // AMX-BF16, which the system lets this process use
  bool vnni = false;      // sums of products of bytes in 32 bits, without a step of 16
};
CpuFeatures cpu_features();

/// Makes oneDNN run single-threaded in the calling thread; for worker threads.
void use_one_thread();

/// The same for a scope of a thread that belongs to the caller of the library.
class OneThreadScope {
 public:
  OneThreadScope();
  ~OneThreadScope();
  OneThreadScope(const OneThreadScope&) = delete;
  OneThreadScope& operator=(const OneThreadScope&) = delete;

 private:
  int before_;
};

/// Bytes of a weight matrix packed panel by panel.
size_t packed_bytes(int64_t in_features, int64_t out_features, DType dtype);
/// `weight` is float32 [out_features, in_features]; panels are packed in parallel.
void pack_weight(const float* weight, int64_t in_features, int64_t out_features, DType dtype,
                 void* packed, ThreadPool& pool);

struct GemmWorkers;

/// The kernels of every layer shape met so far, made when first asked for.
class GemmSet {
 public:
  explicit GemmSet(int workers);
  ~GemmSet();
  /// Not thread-safe. Throws RuntimeError when oneDNN has no kernel for the shape.
  const Gemm& get(const DenseShape& shape);

 private:
  std::unique_ptr<GemmWorkers> workers_;
  std::map<DenseShape, std::unique_ptr<Gemm>> gemms_;
};

}  // namespace packhorse::cpu
