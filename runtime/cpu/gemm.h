// Dense layers. Our own kernel computes those in float32 (gemm_float.cc), oneDNN's matmul those in
// bfloat16 and int8 (gemm.cc, gemm_int8.cc, gemm_kernel.cc). oneDNN is not used for anything else.
//
// oneDNN may choose another kernel, or another order of summation, when the number of rows changes.
// So it always gets rows in blocks of a few fixed sizes, and columns in panels whose width depends
// only on the layer; every kernel runs on the thread that calls it. A block size, or a kernel for
// all panels at once, is used only if a probe shows that the bits of a row depend on nothing but
// the row. This also bounds the number of kernels by the number of layer shapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "cpu/gemm_shape.h"
#include "cpu/read_ahead.h"
#include "cpu/thread_pool.h"

namespace packhorse::cpu {

/// The instruction sets of this machine as oneDNN sees them; the environment variable
/// ONEDNN_MAX_CPU_ISA limits them.
enum class Isa { kSse41, kAvx2, kAvx512 };
struct CpuFeatures {
  Isa isa = Isa::kSse41;
  bool bfloat16 = false;  // AVX512-BF16; every processor with AMX-BF16 has it
  bool amx = false;       // AMX-BF16, if the system lets this process use it
  bool vnni = false;      // sums of int8 products in 32 bits, with no 16-bit step
};
CpuFeatures cpu_features();

/// Makes oneDNN run single-threaded in the calling thread. Worker threads call this.
void use_one_thread();

/// Makes oneDNN run single-threaded within a scope, for threads that belong to the caller of the
/// library.
class OneThreadScope {
 public:
  OneThreadScope();
  ~OneThreadScope();
  OneThreadScope(const OneThreadScope&) = delete;
  OneThreadScope& operator=(const OneThreadScope&) = delete;

 private:
  int before_;
};

/// The bytes of a weight matrix packed panel by panel.
size_t packed_bytes(int64_t in_features, int64_t out_features, DType dtype);
/// Packs `weight`, float32 [out_features, in_features]; panels are packed in parallel.
void pack_weight(const float* weight, int64_t in_features, int64_t out_features, DType dtype,
                 void* packed, ThreadPool& pool);

struct GemmWorkers;

/// The kernels of every layer shape used so far. A kernel is created when it is first asked for.
class GemmSet {
 public:
  explicit GemmSet(int workers);
  ~GemmSet();
  /// Not thread-safe. Throws RuntimeError if oneDNN has no kernel for the shape.
  const Gemm& get(const DenseShape& shape);
  /// The order in which products of few rows read their weights.
  WeightOrder& weight_order() { return weight_order_; }

 private:
  std::unique_ptr<GemmWorkers> workers_;
  std::map<DenseShape, std::unique_ptr<Gemm>> gemms_;
  WeightOrder weight_order_;
};

}  // namespace packhorse::cpu
