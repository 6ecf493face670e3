// Dense layers of all dtypes, and their weights. Our own kernels compute those in float32, whose
// weights may have 16 bits (gemm_float.cc), and those whose weights are quantised in groups
// (gemm_groupwise.cc); how those in bfloat16 and int8 are computed depends on the processor
// (gemm_engine.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "cpu/gemm/gemm_engine.h"
#include "cpu/gemm/gemm_shape.h"
#include "cpu/threads/read_ahead.h"
#include "cpu/threads/thread_pool.h"

namespace packhorse::cpu {

/// The bytes of a weight matrix of floats, packed panel by panel for rows of dtype `x`.
size_t packed_bytes(int64_t in_features, int64_t out_features, DType dtype, DType x);
/// Packs `weight`, float32 [out_features, in_features]; panels are packed in parallel.
void pack_weight(const float* weight, int64_t in_features, int64_t out_features, DType dtype,
                 DType x, void* packed, ThreadPool& pool);

/// The kernels of every layer shape used so far. A kernel is created when it is first asked for.
class GemmSet {
 public:
  explicit GemmSet(int workers) : engine_(make_gemm_engine(workers)) {}
  /// Returns the kernel of a shape. Not thread-safe. Throws RuntimeError if there is none.
  const Gemm& get(const DenseShape& shape);
  /// The order in which products of few rows read their weights.
  WeightOrder& weight_order() { return weight_order_; }

 private:
  std::unique_ptr<GemmEngine> engine_;
  std::map<DenseShape, std::unique_ptr<Gemm>> gemms_;
  WeightOrder weight_order_;
};

}  // namespace packhorse::cpu
