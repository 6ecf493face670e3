// Dense layers in int8 by oneDNN. Sums of products are exact, so neither block sizes nor kernels
// can change a bit of them, provided that no sum saturates on the way. Without VNNI, oneDNN's
// kernels add pairs of products in 16 bits; there, q of activations stays below 128.
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "core/format.h"
#include "cpu/common/profile.h"
#include "cpu/common/rows.h"
#include "cpu/gemm/gemm_int8.h"
#include "cpu/isa/kernels.h"
#include "cpu/isa/processor.h"
#include "cpu/x86/onednn_matmul.h"
#include "packhorse/error.h"

namespace packhorse::cpu {
namespace {

constexpr int64_t kMostRows = kBlockRows * blocks_at_once(DType::kInt8);
constexpr std::array<int64_t, 4> kRowCounts = {kMostRows, kBlockRows, 32, 16};

// Floats of a line of the cache.
constexpr int64_t kLineFloats = 16;

class Int8Gemm final : public Gemm {
 public:
  Int8Gemm(const DenseShape& shape, GemmWorkers& workers)
      : shape_(shape),
        layout_(shape.in_features, shape.out_features, DType::kInt8),
        workers_(workers),
        dequantize_(kernels_here().dequantize_rows[index_of(shape.out_dtype)]) {
    for (const int64_t rows : kRowCounts) make(rows);
    check_exact();
    if (is_in_stripes(layout_, DType::kInt8)) {
      const Kernels& kernels = kernels_here();
      multiply_stripe_ =
          cpu_features().vnni ? kernels.multiply_stripe_int8 : kernels.multiply_stripe_int8_plain;
    }
  }

  int64_t readable_rows(int64_t) const override { return kBlockRows; }

  void run(const Block& block) const override { run_columns(block, 0, shape_.out_features); }

  int64_t columns_at_once(int64_t rows) const override {
    return in_stripes(rows) ? kStripeColumns : layout_.columns;
  }

  void run_columns(const Block& block, int64_t begin, int64_t columns) const override {
    const int64_t width = columns_at_once(block.rows);
    for (int64_t done = 0; done < columns; done += width) {
      run_piece(block, begin + done, std::min(width, columns - done));
    }
  }

 private:
  // oneDNN's kernels for one number of rows: for full panels and for the last panel.
  struct SizedKernels {
    int64_t rows;
    std::optional<Kernel> full, last;
  };

  bool in_stripes(int64_t rows) const { return rows <= kSkinnyRows && multiply_stripe_ != nullptr; }
  void make(int64_t rows);
  void run_piece(const Block& block, int64_t begin, int64_t columns) const;
  void multiply(const Block& block, const void* panels, int64_t panel, int32_t* sums) const;
  void multiply_stripe(const Block& block, const void* panels, int64_t begin, int64_t columns,
                       int32_t* sums) const;
  void check_exact() const;

  const DenseShape shape_;
  const PackedLayout layout_;
  GemmWorkers& workers_;
  void (*const dequantize_)(const DequantizeRows&);
  mutable std::vector<SizedKernels> kernels_;  // by descending number of rows
  void (*multiply_stripe_)(const MultiplyStripe&) = nullptr;
};

void Int8Gemm::make(int64_t rows) {
  const auto kernel = [&](int64_t columns, const dnnl::memory::desc& weight) {
    const DenseShape shape = {.in_features = shape_.in_features,
                              .out_features = columns,
                              .dtype = DType::kInt8,
                              .out_dtype = DType::kInt32};
    const auto desc = describe(shape, rows, columns, &weight);
    if (!desc) {
      throw RuntimeError(concat("oneDNN has no int8 matmul of ", shape_.in_features, " x ", columns,
                                " features and ", rows, " rows on this CPU"));
    }
    return Kernel(desc, workers_);
  };
  SizedKernels made = {rows, std::nullopt, kernel(layout_.last_columns, layout_.last)};
  if (layout_.panels > 1) made.full = kernel(layout_.columns, layout_.full);
  kernels_.push_back(std::move(made));
}

// Computes a stripe or a panel: sums first, then floats of them.
void Int8Gemm::run_piece(const Block& block, int64_t begin, int64_t columns) const {
  const Int8Weight weight(block.weight, layout_.bytes, shape_.out_features);
  auto* sums = static_cast<int32_t*>(block.tile);
  if (in_stripes(block.rows)) {
    // Prefetches scales and sums: they come from memory while the stripe is multiplied.
    for (int64_t i = 0; i < columns; i += kLineFloats) {
      __builtin_prefetch(weight.scales + begin + i);
      __builtin_prefetch(weight.sums + begin + i);
    }
    multiply_stripe(block, weight.panels, begin, columns, sums);
  } else {
    multiply(block, weight.panels, begin / layout_.columns, sums);
  }
  const auto offset = static_cast<size_t>(begin - block.first_column) * size_of(shape_.out_dtype);
  const CpuTimer timer(CpuPart::kQuantize);
  dequantize_({sums, block.x_scales, block.x_offsets, weight.scales + begin, weight.sums + begin,
               shape_.bias ? block.bias + begin : nullptr, static_cast<char*>(block.out) + offset,
               block.out_stride, block.rows, columns, shape_.activation});
}

// Computes the integer sums of one panel: `sums` is [rows, columns of the panel], contiguous. It
// may be written up to the next multiple of 64 rows.
void Int8Gemm::multiply(const Block& block, const void* panels, int64_t panel,
                        int32_t* sums) const {
  const bool last = panel + 1 == layout_.panels;
  const char* weight =
      static_cast<const char*>(panels) + static_cast<size_t>(panel) * layout_.panel_bytes;
  const auto* x = static_cast<const uint8_t*>(block.x);
  for (int64_t rows = block.rows; rows > 0;) {
    const size_t smallest = rows > 32 ? 1 : rows > 16 ? 2 : 3;
    SizedKernels& best = kernels_[rows >= kMostRows ? 0 : smallest];
    Kernel& kernel = last ? *best.last : *best.full;
    kernel.run(x, weight, nullptr, sums, block.worker, workers_);
    x += best.rows * shape_.in_features;
    sums += best.rows * (last ? layout_.last_columns : layout_.columns);
    rows -= best.rows;
  }
}

void Int8Gemm::multiply_stripe(const Block& block, const void* panels, int64_t begin,
                               int64_t columns, int32_t* sums) const {
  const CpuTimer timer(CpuPart::kProduct);
  MultiplyStripe task;
  task.x = block.x;
  task.x_stride = shape_.in_features;
  task.weight = static_cast<const char*>(panels) + layout_.stripe_offset(begin);
  task.out = sums;
  task.out_stride = columns;
  task.rows = block.rows;
  task.in_features = shape_.in_features;
  task.columns = columns;
  task.stripe_bytes = static_cast<int64_t>(layout_.stripe_bytes);
  multiply_stripe_(task);
}

// Runs each kernel on the largest possible products, in its last panel, and throws if a sum
// saturates.
void Int8Gemm::check_exact() const {
  const int64_t columns = layout_.last_columns;
  std::vector<int8_t> weight(static_cast<size_t>(shape_.in_features * columns), 127);
  std::fill(weight.begin(), weight.begin() + shape_.in_features * (columns / 2), int8_t{-127});
  const PackedLayout layout(shape_.in_features, columns, DType::kInt8);
  std::vector<std::byte> packed(layout.bytes);
  pack_panel(layout, weight.data(), DType::kInt8, 0, packed.data());
  const std::vector<uint8_t> x(static_cast<size_t>(shape_.in_features * kMostRows),
                               static_cast<uint8_t>(int8_levels()));
  std::vector<int32_t> sums(static_cast<size_t>(columns * kMostRows));
  const auto expected = static_cast<int32_t>(shape_.in_features * int8_levels() * 127);
  for (SizedKernels& kernels : kernels_) {
    kernels.last->run(x.data(), packed.data(), nullptr, sums.data(), 0, workers_);
    for (int64_t i = 0; i < kernels.rows * columns; ++i) {
      const int32_t sum = sums[static_cast<size_t>(i)];
      if (sum == (i % columns < columns / 2 ? -expected : expected)) continue;
      throw RuntimeError(concat("oneDNN's int8 matmul of ", shape_.in_features, " x ", columns,
                                " features is not exact on this CPU: found ", sum, ", expected ",
                                expected));
    }
  }
}

}  // namespace

int int8_levels() {
  static const int levels = cpu_features().vnni ? 255 : 127;
  return levels;
}

std::unique_ptr<Gemm> make_onednn_int8_gemm(const DenseShape& shape, GemmWorkers& workers) {
  return std::make_unique<Int8Gemm>(shape, workers);
}

}  // namespace packhorse::cpu
