#include "cpu/gemm/gemm_panels.h"

#include <algorithm>
#include <cstring>

#include "core/float_convert.h"
#include "core/math.h"
#include "cpu/common/profile.h"
#include "cpu/common/rows.h"
#include "cpu/gemm/gemm_int8.h"
#include "cpu/isa/kernels.h"
#include "cpu/isa/processor.h"

namespace packhorse::cpu {
namespace {

int64_t panels_of(int64_t columns) { return ceil_div(columns, kPanelColumns); }

int64_t panel_bytes(int64_t in_features, DType dtype) {
  const int64_t bytes = in_features * static_cast<int64_t>(size_of(dtype));
  return round_up(bytes, kPieceBytes) * kPanelColumns;
}

// Returns the sums of the weights of each column, which lie behind the panels of int8.
const int32_t* column_sums(const void* packed, int64_t in_features, int64_t out_features) {
  return reinterpret_cast<const int32_t*>(static_cast<const char*>(packed) +
                                          panels_of(out_features) *
                                              panel_bytes(in_features, DType::kInt8));
}

uint16_t element_of(float value) { return float32_to_bfloat16(value); }
int8_t element_of(int8_t value) { return value; }

// Packs one panel, whose columns begin at `first`. `From` is converted to `To`.
template <class To, class From>
void pack_panel(const From* weight, int64_t first, int64_t in_features, int64_t out_features,
                int64_t bytes, void* to) {
  std::memset(to, 0, static_cast<size_t>(bytes));
  const int64_t group = kernels_here().panel_group_bytes / static_cast<int64_t>(sizeof(To));
  for (int64_t n = 0; n < std::min(kPanelColumns, out_features - first); ++n) {
    const From* row = weight + (first + n) * in_features;
    for (int64_t k = 0; k < in_features; ++k) {
      static_cast<To*>(to)[(k / group * kPanelColumns + n) * group + k % group] =
          element_of(row[k]);
    }
  }
}

// The columns that a task of a block of `rows` rows takes.
int64_t columns_for(int64_t rows, DType dtype) {
  return rows <= kSkinnyRows ? kStripeColumns : panel_width(dtype);
}

MultiplyPanels task_of(const Gemm::Block& block, const DenseShape& shape, int64_t begin,
                       int64_t columns) {
  MultiplyPanels task;
  task.x = block.x;
  task.x_stride = shape.in_features;
  task.weight = static_cast<const char*>(block.weight) +
                begin / kPanelColumns * panel_bytes(shape.in_features, shape.dtype);
  task.rows = block.rows;
  task.in_features = shape.in_features;
  task.columns = columns;
  return task;
}

void* out_of(const Gemm::Block& block, const DenseShape& shape, int64_t begin) {
  return static_cast<char*>(block.out) +
         static_cast<size_t>(begin - block.first_column) * size_of(shape.out_dtype);
}

class Bfloat16Gemm final : public Gemm {
 public:
  explicit Bfloat16Gemm(const DenseShape& shape)
      : shape_(shape), multiply_(kernels_here().multiply_panels[index_of(shape.out_dtype)]) {}

  int64_t readable_rows(int64_t rows) const override { return rows; }
  void run(const Block& block) const override { run_columns(block, 0, shape_.out_features); }
  int64_t columns_at_once(int64_t rows) const override { return columns_for(rows, shape_.dtype); }
  void run_columns(const Block& block, int64_t begin, int64_t columns) const override {
    const CpuTimer timer(CpuPart::kProduct);
    MultiplyPanels task = task_of(block, shape_, begin, columns);
    task.bias = shape_.bias ? block.bias + begin : nullptr;
    task.out = out_of(block, shape_, begin);
    task.out_stride = block.out_stride;
    task.activation = shape_.activation;
    multiply_(task);
  }

 private:
  const DenseShape shape_;
  void (*const multiply_)(const MultiplyPanels&);
};

class Int8Gemm final : public Gemm {
 public:
  explicit Int8Gemm(const DenseShape& shape)
      : shape_(shape),
        panel_bytes_(own_panels_bytes(shape.in_features, shape.out_features, shape.dtype)),
        dequantize_(kernels_here().dequantize_rows[index_of(shape.out_dtype)]) {
    const Kernels& kernels = kernels_here();
    const auto vnni = kernels.multiply_panels_int8_vnni;
    multiply_ = vnni != nullptr && cpu_features().vnni ? vnni : kernels.multiply_panels_int8;
  }

  int64_t readable_rows(int64_t rows) const override { return rows; }
  void run(const Block& block) const override { run_columns(block, 0, shape_.out_features); }
  int64_t columns_at_once(int64_t rows) const override { return columns_for(rows, shape_.dtype); }
  void run_columns(const Block& block, int64_t begin, int64_t columns) const override {
    const int64_t width = panel_width(shape_.dtype);
    for (int64_t done = 0; done < columns; done += width) {
      run_piece(block, begin + done, std::min(width, columns - done));
    }
  }

 private:
  // Computes sums, which stay in a cache, then floats of them.
  void run_piece(const Block& block, int64_t begin, int64_t columns) const {
    const Int8Weight weight(block.weight, panel_bytes_, shape_.out_features);
    auto* sums = static_cast<int32_t*>(block.tile);
    MultiplyPanels task = task_of(block, shape_, begin, columns);
    task.sums = column_sums(block.weight, shape_.in_features, shape_.out_features) + begin;
    task.out = sums;
    task.out_stride = columns;
    {
      const CpuTimer timer(CpuPart::kProduct);
      multiply_(task);
    }
    const CpuTimer timer(CpuPart::kQuantize);
    dequantize_({sums, block.x_scales, block.x_offsets, weight.scales + begin, weight.sums + begin,
                 shape_.bias ? block.bias + begin : nullptr, out_of(block, shape_, begin),
                 block.out_stride, block.rows, columns, shape_.activation});
  }

  const DenseShape shape_;
  const size_t panel_bytes_;
  void (*multiply_)(const MultiplyPanels&);
  void (*const dequantize_)(const DequantizeRows&);
};

}  // namespace

bool has_own_int8() { return kernels_here().multiply_panels_int8 != nullptr; }

std::unique_ptr<Gemm> make_panel_gemm(const DenseShape& shape) {
  if (shape.dtype == DType::kInt8) return std::make_unique<Int8Gemm>(shape);
  return std::make_unique<Bfloat16Gemm>(shape);
}

size_t own_panels_bytes(int64_t in_features, int64_t out_features, DType dtype) {
  const int64_t sums = dtype == DType::kInt8 ? out_features * int64_t{sizeof(int32_t)} : 0;
  return static_cast<size_t>(panels_of(out_features) * panel_bytes(in_features, dtype) + sums);
}

void pack_own_panels(const void* weight, int64_t in_features, int64_t out_features, DType dtype,
                     void* packed, ThreadPool& pool) {
  const int64_t bytes = panel_bytes(in_features, dtype);
  auto* sums = const_cast<int32_t*>(column_sums(packed, in_features, out_features));
  pool.parallel_for(panels_of(out_features), [&](int64_t panel, int) {
    const int64_t first = panel * kPanelColumns;
    void* to = static_cast<char*>(packed) + panel * bytes;
    if (dtype == DType::kBFloat16) {
      return pack_panel<uint16_t>(static_cast<const float*>(weight), first, in_features,
                                  out_features, bytes, to);
    }
    const auto* from = static_cast<const int8_t*>(weight);
    pack_panel<int8_t>(from, first, in_features, out_features, bytes, to);
    for (int64_t n = first; n < std::min(first + kPanelColumns, out_features); ++n) {
      sums[n] = 0;
      for (int64_t k = 0; k < in_features; ++k) sums[n] += from[n * in_features + k];
    }
  });
}

void pack_own_panel_rows(const float* rows, int64_t first, int64_t count, int64_t in_features,
                         void* packed) {
  const int64_t bytes = panel_bytes(in_features, DType::kBFloat16);
  char* to = static_cast<char*>(packed) + first / kPanelColumns * bytes;
  for (int64_t begin = 0; begin < count; begin += kPanelColumns, to += bytes) {
    pack_panel<uint16_t>(rows, begin, in_features, count, bytes, to);
  }
}

}  // namespace packhorse::cpu
