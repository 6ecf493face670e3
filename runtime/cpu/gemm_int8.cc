#include "cpu/gemm_int8.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "core/format.h"
#include "cpu/gemm_kernel.h"
#include "cpu/profile.h"
#include "cpu/row_ops.h"
#include "packhorse/error.h"

namespace packhorse::cpu {
namespace {

constexpr int64_t kMostRows = kBlockRows * blocks_at_once(DType::kInt8);
constexpr std::array<int64_t, 4> kRowCounts = {kMostRows, kBlockRows, 32, 16};

// Floats of a line of the cache.
constexpr int64_t kLineFloats = 16;

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

// The parts of a packed weight: first the panels, then the two vectors.
struct Int8Weight {
  Int8Weight(const void* packed, size_t panel_bytes, int64_t out_features)
      : panels(packed),
        scales(reinterpret_cast<const float*>(static_cast<const char*>(packed) +
                                              aligned(panel_bytes))),
        sums(scales + out_features) {}
  const void* panels;
  const float* scales;  // [out_features]
  const float* sums;    // [out_features] scale * sum of q, the factor of an offset of x
};

void check_in_features(int64_t in_features) {
  constexpr int64_t kMost = (int64_t{1} << 31) / (255 * 127);
  if (in_features > kMost) {
    throw InvalidArgument(
        concat("dtype int8: a layer of ", in_features, " in_features, expected at most ", kMost));
  }
}

// Quantises one row to q and returns its scale.
float quantize_row(const float* row, int64_t size, int8_t* to) {
  float most = 0;
  for (int64_t i = 0; i < size; ++i) most = std::max(most, std::abs(row[i]));
  const float scale = most / 127.0f;
  for (int64_t i = 0; i < size; ++i) {
    const float q = scale > 0 ? std::nearbyint(row[i] / scale) : 0.0f;
    to[i] = static_cast<int8_t>(std::clamp(q, -127.0f, 127.0f));
  }
  return scale;
}

// Packs a weight. `row(n, to)` writes q of output feature n to `to` and returns its scale.
template <class Row>
void pack(int64_t in_features, int64_t out_features, void* packed, ThreadPool& pool, Row row) {
  const PackedLayout layout(in_features, out_features, DType::kInt8);
  const Int8Weight parts(packed, layout.bytes, out_features);
  auto* scales = const_cast<float*>(parts.scales);
  auto* sums = const_cast<float*>(parts.sums);
  std::vector<int8_t> weight(static_cast<size_t>(in_features * out_features));
  pool.parallel_for(layout.panels, [&](int64_t panel, int) {
    const int64_t begin = panel * layout.columns;
    for (int64_t n = begin; n < std::min(begin + layout.columns, out_features); ++n) {
      int8_t* q = weight.data() + n * in_features;
      scales[n] = row(n, q);
      int64_t sum = 0;
      for (int64_t i = 0; i < in_features; ++i) sum += q[i];
      sums[n] = scales[n] * static_cast<float>(sum);
    }
    pack_panel(layout, weight.data(), DType::kInt8, panel, packed);
  });
}

}  // namespace

int int8_levels() {
  static const int levels = cpu_features().vnni ? 255 : 127;
  return levels;
}

size_t packed_int8_bytes(int64_t in_features, int64_t out_features) {
  check_in_features(in_features);
  return aligned(packed_bytes(in_features, out_features, DType::kInt8)) +
         2 * static_cast<size_t>(out_features) * sizeof(float);
}

void pack_int8_weight(const float* weight, int64_t in_features, int64_t out_features, void* packed,
                      ThreadPool& pool) {
  pack(in_features, out_features, packed, pool, [&](int64_t n, int8_t* to) {
    return quantize_row(weight + n * in_features, in_features, to);
  });
}

void pack_int8_weight(const int8_t* weight, const float* scales, int64_t in_features,
                      int64_t out_features, void* packed, ThreadPool& pool) {
  pack(in_features, out_features, packed, pool, [&](int64_t n, int8_t* to) {
    std::copy_n(weight + n * in_features, in_features, to);
    return scales[n];
  });
}

namespace {

class Int8Gemm final : public Gemm {
 public:
  Int8Gemm(const DenseShape& shape, GemmWorkers& workers)
      : shape_(shape),
        layout_(shape.in_features, shape.out_features, DType::kInt8),
        workers_(workers),
        dequantize_(kernels_here().dequantize_rows[index_of(shape.out_dtype)]) {
    for (const int64_t rows : kRowCounts) make(rows);
    check_exact();
    if (cpu_features().vnni && is_in_stripes(layout_, DType::kInt8)) {
      multiply_stripe_ = kernels_here().multiply_stripe_int8;
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

  bool in_stripes(int64_t rows) const { return rows <= kFewRows && multiply_stripe_ != nullptr; }
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
  mutable std::vector<SizedKernels> kernels_;  // in descending order of rows
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
    // They come from memory while the stripe is multiplied.
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

std::unique_ptr<Gemm> make_int8_gemm(const DenseShape& shape, GemmWorkers& workers) {
  return std::make_unique<Int8Gemm>(shape, workers);
}

}  // namespace packhorse::cpu
