#include "cpu/gemm/gemm.h"

#include "cpu/gemm/gemm_float.h"
#include "cpu/gemm/gemm_groupwise.h"

namespace packhorse::cpu {

size_t packed_bytes(int64_t in_features, int64_t out_features, DType dtype, DType x) {
  if (product_dtype(dtype, x) == DType::kFloat32) {
    return packed_float_bytes(in_features, out_features, dtype);
  }
  return packed_panels_bytes(in_features, out_features, dtype);
}

void pack_weight(const float* weight, int64_t in_features, int64_t out_features, DType dtype,
                 DType x, void* packed, ThreadPool& pool) {
  if (product_dtype(dtype, x) == DType::kFloat32) {
    return pack_float_weight(weight, in_features, out_features, dtype, packed, pool);
  }
  pack_panels(weight, DType::kFloat32, in_features, out_features, dtype, packed, pool);
}

const Gemm& GemmSet::get(const DenseShape& shape) {
  std::unique_ptr<Gemm>& gemm = gemms_[shape];
  if (gemm != nullptr) return *gemm;
  if (shape.dtype == DType::kFloat32) {
    gemm = make_float_gemm(shape);
  } else if (shape.groups) {
    gemm = make_groupwise_gemm(shape);
  } else {
    gemm = engine_->make(shape);
  }
  return *gemm;
}

}  // namespace packhorse::cpu
