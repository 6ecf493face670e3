#include "cpu/gemm/gemm_float.h"

#include <algorithm>

#include "core/math.h"
#include "cpu/common/profile.h"
#include "cpu/isa/kernels.h"

namespace packhorse::cpu {
namespace {

// The index of a weight's dtype in Kernels::multiply and pack_columns.
size_t index_of_weight(DType dtype) {
  if (dtype == DType::kFloat32) return 0;
  return dtype == DType::kBFloat16 ? 1 : 2;
}

class FloatGemm final : public Gemm {
 public:
  explicit FloatGemm(const DenseShape& shape)
      : multiply_(kernels_here().multiply[index_of_weight(shape.weight)]), shape_(shape) {}

  int64_t readable_rows(int64_t rows) const override { return rows; }

  void run(const Block& block) const override { run_columns(block, 0, shape_.out_features); }
  int64_t columns_at_once(int64_t) const override { return panel_width(DType::kFloat32); }
  void run_columns(const Block& block, int64_t begin, int64_t columns) const override {
    MultiplyRows task;
    task.x = static_cast<const float*>(block.x);
    task.x_stride = block.x_stride != 0 ? block.x_stride : shape_.in_features;
    task.weight = static_cast<const char*>(block.weight) +
                  static_cast<size_t>(begin * shape_.in_features) * size_of(shape_.weight);
    task.bias = shape_.bias ? block.bias + begin : nullptr;
    task.out = static_cast<float*>(block.out) + (begin - block.first_column);
    task.out_stride = block.out_stride;
    task.rows = block.rows;
    task.in_features = shape_.in_features;
    task.columns = columns;
    task.activation = shape_.activation;
    const CpuTimer timer(CpuPart::kProduct);
    multiply_(task);
  }

 private:
  void (*const multiply_)(const MultiplyRows&);
  const DenseShape shape_;
};

}  // namespace

size_t packed_float_bytes(int64_t in_features, int64_t out_features, DType dtype) {
  const int64_t columns = round_up(out_features, kPackedColumns);
  return static_cast<size_t>(in_features * columns) * size_of(dtype);
}

void pack_float_weight(const float* weight, int64_t in_features, int64_t out_features, DType dtype,
                       void* packed, ThreadPool& pool) {
  const int64_t width = panel_width(DType::kFloat32);
  pool.parallel_for(panel_count(out_features, DType::kFloat32), [&](int64_t panel, int) {
    const int64_t begin = panel * width;
    pack_float_rows(weight + begin * in_features, begin, std::min(width, out_features - begin),
                    in_features, dtype, packed);
  });
}

void pack_float_rows(const float* rows, int64_t first, int64_t count, int64_t in_features,
                     DType dtype, void* packed) {
  const auto offset = static_cast<size_t>(first * in_features) * size_of(dtype);
  kernels_here().pack_columns[index_of_weight(dtype)](
      {rows, in_features, count, static_cast<char*>(packed) + offset});
}

std::unique_ptr<Gemm> make_float_gemm(const DenseShape& shape) {
  return std::make_unique<FloatGemm>(shape);
}

}  // namespace packhorse::cpu
