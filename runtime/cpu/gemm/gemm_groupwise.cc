#include "cpu/gemm/gemm_groupwise.h"

#include <algorithm>

#include "cpu/common/groups_layout.h"
#include "cpu/common/profile.h"
#include "cpu/common/rows.h"
#include "cpu/isa/kernels.h"
#include "cpu/isa/processor.h"

namespace packhorse::cpu {
namespace {

constexpr int64_t kRowsOfTiles = 16;  // rows from which on tile registers are faster than vectors
constexpr int64_t kManyRowColumns = 192;  // columns of a task that has more than kSkinnyRows rows

class GroupwiseGemm final : public Gemm {
 public:
  explicit GroupwiseGemm(const DenseShape& shape)
      : shape_(shape), stripe_bytes_(groups_stripe_bytes(shape.in_features, shape.groups)) {
    const Kernels& kernels = kernels_here();
    multiply_ = kernels.multiply_groupwise[index_of(shape.out_dtype)];
    const auto vnni = kernels.multiply_groupwise_vnni[index_of(shape.out_dtype)];
    if (vnni != nullptr && cpu_features().vnni) multiply_ = vnni;
    if (shape.groups.bits == 10) multiply_apart_ = kernels.multiply_wide[index_of(shape.out_dtype)];
  }

  int64_t readable_rows(int64_t rows) const override { return rows; }
  void run(const Block& block) const override { run_columns(block, 0, shape_.out_features); }
  bool takes_bytes_apart(int64_t rows) const override {
    return multiply_apart_ != nullptr && rows >= kRowsOfTiles;
  }
  int64_t columns_at_once(int64_t rows) const override {
    return rows <= kSkinnyRows ? kStripeColumns : kManyRowColumns;
  }

  void run_columns(const Block& block, int64_t begin, int64_t columns) const override {
    const CpuTimer timer(CpuPart::kProduct);
    MultiplyGroupwise task;
    task.x = static_cast<const int8_t*>(block.x);
    task.x_scales = block.x_scales;
    task.x_sums = block.x_sums;
    task.out_stride = block.out_stride;
    task.rows = block.rows;
    task.blocks = group_blocks(shape_.in_features, shape_.groups.wide_inputs);
    task.bits = shape_.groups.bits;
    task.group = shape_.groups.size;
    task.minima = shape_.groups.minima;
    task.activation = shape_.activation;
    const auto multiply = takes_bytes_apart(block.rows) ? multiply_apart_ : multiply_;
    for (int64_t first = begin; first < begin + columns; first += kStripeColumns) {
      task.weight =
          static_cast<const uint8_t*>(block.weight) + first / kStripeColumns * stripe_bytes_;
      task.bias = shape_.bias ? block.bias + first : nullptr;
      task.out = static_cast<char*>(block.out) +
                 static_cast<size_t>(first - block.first_column) * size_of(shape_.out_dtype);
      task.columns = std::min(kStripeColumns, begin + columns - first);
      multiply(task);
    }
  }

 private:
  const DenseShape shape_;
  const int64_t stripe_bytes_;
  void (*multiply_)(const MultiplyGroupwise&);
  void (*multiply_apart_)(const MultiplyGroupwise&) = nullptr;
};

}  // namespace

std::unique_ptr<Gemm> make_groupwise_gemm(const DenseShape& shape) {
  return std::make_unique<GroupwiseGemm>(shape);
}

}  // namespace packhorse::cpu
