// Dense layers in bfloat16 by oneDNN.
//
// oneDNN may choose another kernel, or another order of summation, when the number of rows changes.
// So it always gets rows in blocks of a few fixed sizes, and columns in panels whose width depends
// only on the layer; every kernel runs on the thread that calls it. A block size, or a kernel for
// all panels at once, is used only if a probe shows that the bits of a row depend on nothing but
// the row. This also bounds the number of kernels by the number of layer shapes.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/format.h"
#include "cpu/common/profile.h"
#include "cpu/common/rows.h"
#include "cpu/gemm/gemm_engine.h"
#include "cpu/gemm/gemm_panels.h"
#include "cpu/isa/kernels.h"
#include "cpu/threads/one_thread.h"
#include "cpu/x86/onednn_matmul.h"
#include "packhorse/error.h"

// These functions come from the OpenMP runtime that oneDNN was linked with. They are weak because
// nothing else here needs OpenMP, and a oneDNN that was built without it is single-threaded anyway.
extern "C" {
[[gnu::weak]] int omp_get_max_threads();
[[gnu::weak]] void omp_set_num_threads(int);
}

namespace packhorse::cpu {
namespace {

using dnnl::memory;

// The block sizes. The smaller ones are for the last rows of a batch. 1 is not among them, because
// a matrix-vector kernel sums in another order.
constexpr std::array<int64_t, 3> kRowCounts = {kBlockRows, 32, 16};

// Input features that oneDNN's kernels may add up before they add the result to an earlier one,
// those first that version 3.2 chooses. The last stands for all.
constexpr std::array<int64_t, 7> kChunks = {512, 1024, 256, 2048, 128, 64, int64_t{1} << 40};

// Panels of the layer in which kernels for panels are probed: those of a wider one are the same.
constexpr int64_t kProbedPanels = 4;

// The widest layer of a model that generates which has kernels for all panels at once. Wider ones
// are heads over a vocabulary, which get few rows, and a probe would take as long as to load the
// model.
constexpr int64_t kWidestAtOnce = int64_t{1} << 14;

}  // namespace

void use_one_thread() {
  if (omp_set_num_threads != nullptr) omp_set_num_threads(1);
}

OneThreadScope::OneThreadScope()
    : before_(omp_get_max_threads != nullptr ? omp_get_max_threads() : 1) {
  if (before_ != 1) omp_set_num_threads(1);
}

OneThreadScope::~OneThreadScope() {
  if (before_ != 1) omp_set_num_threads(before_);
}

size_t packed_panels_bytes(int64_t in_features, int64_t out_features, DType dtype) {
  if (dtype == DType::kInt8 && has_own_int8()) {
    return own_panels_bytes(in_features, out_features, dtype);
  }
  const OneThreadScope one_thread;
  return PackedLayout(in_features, out_features, dtype).bytes;
}

void pack_panels(const void* weight, DType from, int64_t in_features, int64_t out_features,
                 DType dtype, void* packed, ThreadPool& pool) {
  if (dtype == DType::kInt8 && has_own_int8()) {
    return pack_own_panels(weight, in_features, out_features, dtype, packed, pool);
  }
  const PackedLayout layout(in_features, out_features, dtype);
  pool.parallel_for(layout.panels,
                    [&](int64_t panel, int) { pack_panel(layout, weight, from, panel, packed); });
}

namespace {

// Returns the layout of a weight in bfloat16, on a thread with a OneThreadScope. Those that were
// asked for are kept, because oneDNN takes as long to choose one as to pack a panel.
PackedLayout bfloat16_layout(int64_t in_features, int64_t out_features) {
  static std::mutex mutex;
  static std::map<std::pair<int64_t, int64_t>, PackedLayout> layouts;
  const std::lock_guard lock(mutex);
  const std::pair shape(in_features, out_features);
  const auto found = layouts.find(shape);
  if (found != layouts.end()) return found->second;
  const PackedLayout layout(in_features, out_features, DType::kBFloat16);
  return layouts.emplace(shape, layout).first->second;
}

}  // namespace

void pack_panel_rows(const float* rows, int64_t first, int64_t count, int64_t in_features,
                     void* packed) {
  const OneThreadScope one_thread;
  const PackedLayout layout = bfloat16_layout(in_features, count);
  // The panels before these are whole ones.
  size_t before = 0;
  if (first > 0) {
    const auto panels = static_cast<size_t>(first / layout.columns);
    before = panels * bfloat16_layout(in_features, layout.columns).bytes;
  }
  for (int64_t panel = 0; panel < layout.panels; ++panel) {
    pack_panel(layout, rows, DType::kFloat32, panel, static_cast<char*>(packed) + before);
  }
}

namespace {

// A random layer and random rows, in their order and in reverse, that show whether kernels agree.
// They are chosen so that every sum, bias included, is zero except for rounding. A different order
// of summation then changes all bits of a sum, while it would rarely change those of an ordinary
// sum. Panels of the same width have the same weights.
class Probe {
 public:
  Probe(const DenseShape& shape, const PackedLayout& layout, GemmWorkers& workers)
      : rows(kBlockRows * blocks_at_once(shape.dtype)),
        shape_(shape),
        bias_(static_cast<size_t>(shape.out_features)),
        packed_(layout.bytes),
        x_(static_cast<size_t>(rows) * x_row_bytes()),
        reversed_(x_.size()),
        out_(static_cast<size_t>(rows * row_bytes())),
        tile_(Gemm::tile_bytes(shape.dtype)) {
    const auto in_features = static_cast<size_t>(shape.in_features);
    // A plain linear congruential generator is fast enough to draw millions of numbers. Its lower
    // bits are poor, so only the upper ones matter here.
    uint32_t state = 1;
    const auto draw_bits = [&] { return state = state * 1664525u + 1013904223u; };
    const auto draw = [&] {
      return static_cast<float>(static_cast<int32_t>(draw_bits())) * 0x1p-32f;
    };
    const int64_t full = layout.panels > 1 ? layout.columns : 0;  // columns of the first panel
    const int64_t drawn = full + layout.last_columns;
    std::vector<float> weight(in_features * static_cast<size_t>(drawn));
    std::vector<float> bias(static_cast<size_t>(drawn));
    std::vector<float> x(in_features * static_cast<size_t>(rows));
    // The second half of the features repeats the weights of the first, with inputs of opposite
    // sign. One more feature cancels the bias.
    const size_t half = (in_features - 1) / 2;
    for (size_t n = 0; n < bias.size(); ++n) {
      float* row = weight.data() + n * in_features;
      for (size_t k = 0; k < half; ++k) row[k] = row[half + k] = draw();
      bias[n] =
          static_cast<float>(draw_bits() >> 24) / 256.0f;  // a number that bfloat16 holds exactly
      row[2 * half] = shape.bias ? -bias[n] : 0;
    }
    for (size_t i = 0; i < x.size(); i += in_features) {
      for (size_t k = 0; k < half; ++k) {
        x[i + k] = draw();
        x[i + half + k] = -x[i + k];
      }
      x[i + 2 * half] = 1;
    }
    const PackedLayout of_drawn(shape.in_features, drawn, shape.dtype);
    std::vector<std::byte> panels(of_drawn.bytes);
    for (int64_t panel = 0; panel < of_drawn.panels; ++panel) {
      pack_panel(of_drawn, weight.data(), DType::kFloat32, panel, panels.data());
    }
    for (int64_t panel = 0; panel < layout.panels; ++panel) {
      const bool last = panel + 1 == layout.panels;
      std::copy_n(bias.data() + (last ? full : 0), last ? layout.last_columns : full,
                  bias_.data() + panel * layout.columns);
      const size_t first_bytes = full > 0 ? layout.panel_bytes : 0;
      std::memcpy(packed_.data() + static_cast<size_t>(panel) * layout.panel_bytes,
                  panels.data() + (last ? first_bytes : 0),
                  last ? of_drawn.bytes - first_bytes : first_bytes);
    }
    const memory::dims dims = {rows, shape.in_features};
    memory from({dims, memory::data_type::f32, memory::format_tag::ab}, engine(), x.data());
    memory to({dims, type_of(shape.dtype), memory::format_tag::ab}, engine(), x_.data());
    dnnl::reorder(from, to).execute(workers.streams[0], from, to);
    for (int64_t i = 0; i < rows; ++i) {
      std::memcpy(reversed_.data() + static_cast<size_t>(rows - 1 - i) * x_row_bytes(),
                  x_.data() + static_cast<size_t>(i) * x_row_bytes(), x_row_bytes());
    }
  }

  // Records the result that all kernels must give.
  void set_reference(const Gemm& gemm) {
    run(gemm, x_.data(), rows);
    reference_ = out_;
  }

  // Returns whether the first `count` rows give the reference, in either order.
  bool agrees(const Gemm& gemm, int64_t count) {
    run(gemm, x_.data(), count);
    if (!std::equal(out_.begin(), out_.begin() + count * row_bytes(), reference_.begin())) {
      return false;
    }
    run(gemm, reversed_.data() + static_cast<size_t>(rows - count) * x_row_bytes(), count);
    for (int64_t i = 0; i < count; ++i) {
      const auto found = out_.begin() + i * row_bytes();
      const auto expected = reference_.begin() + (count - 1 - i) * row_bytes();
      if (!std::equal(found, found + row_bytes(), expected)) return false;
    }
    return true;
  }

  const int64_t rows;  // the most rows that a call ever gets

 private:
  void run(const Gemm& gemm, const std::byte* x, int64_t count) {
    Gemm::Block block;
    block.x = x;
    block.rows = count;
    block.weight = packed_.data();
    block.bias = shape_.bias ? bias_.data() : nullptr;
    block.out = out_.data();
    block.out_stride = shape_.out_features;
    block.out_rows = count;
    block.tile = tile_.data();
    gemm.run(block);
  }

  size_t x_row_bytes() const {
    return static_cast<size_t>(shape_.in_features) * size_of(shape_.dtype);
  }
  int64_t row_bytes() const {
    return shape_.out_features * static_cast<int64_t>(size_of(shape_.out_dtype));
  }

  const DenseShape shape_;
  std::vector<float> bias_;
  std::vector<std::byte> packed_;
  std::vector<std::byte> x_;
  std::vector<std::byte> reversed_;
  std::vector<std::byte> out_;
  std::vector<std::byte> tile_;
  std::vector<std::byte> reference_;
};

class OneDnnGemm final : public Gemm {
 public:
  // `at_once`: whether there are to be kernels for all panels at once.
  OneDnnGemm(const DenseShape& shape, GemmWorkers& workers, bool at_once)
      : shape_(shape),
        layout_(shape.in_features, shape.out_features, shape.dtype),
        workers_(workers) {
    for (size_t i = 0; i < kRowCounts.size(); ++i) {
      usable_[i] =
          make(kRowCounts[i], layout_.last_columns, layout_.last, last_panel_[i]) &&
          (layout_.panels == 1 || make(kRowCounts[i], layout_.columns, layout_.full, panel_[i]));
    }
    if (layout_.panels > kProbedPanels) {
      keep_what_agrees_in_narrower();
    } else {
      keep_what_agrees();
    }
    if (at_once) make_all_panels();
  }

  int64_t readable_rows(int64_t rows) const override {
    return in_stripes(rows) ? rows : kRowCounts[row_index(rows)];
  }

  void run(const Block& block) const override {
    if (in_stripes(block.rows)) return run_stripes(block, 0, shape_.out_features);
    Block rest = block;
    while (rest.rows > 0) {
      int64_t done = std::min(rest.rows, kBlockRows);
      if (AllPanels* all = all_panels_for(rest)) {
        all->kernel.run(rest.x, rest.weight, rest.bias, rest.out, rest.worker, workers_);
        done = std::min(rest.rows, all->rows);
      } else {
        Block part = rest;
        part.rows = done;
        for (int64_t panel = 0; panel < layout_.panels; ++panel) run_panel(part, panel);
      }
      const auto x_bytes = static_cast<size_t>(shape_.in_features) * size_of(shape_.dtype);
      const auto out_bytes = static_cast<size_t>(rest.out_stride) * size_of(shape_.out_dtype);
      rest.x = static_cast<const char*>(rest.x) + static_cast<size_t>(done) * x_bytes;
      rest.out = static_cast<char*>(rest.out) + static_cast<size_t>(done) * out_bytes;
      rest.rows -= done;
      rest.out_rows -= done;
    }
  }

  int64_t columns_at_once(int64_t rows) const override {
    return in_stripes(rows) ? kStripeColumns : layout_.columns;
  }
  void run_columns(const Block& block, int64_t begin, int64_t columns) const override {
    if (in_stripes(block.rows)) return run_stripes(block, begin, columns);
    for (int64_t done = 0; done < columns; done += layout_.columns) {
      run_panel(block, (begin + done) / layout_.columns);
    }
  }

 private:
  void run_panel(const Block& block, int64_t panel) const {
    const size_t index = row_index(block.rows);
    const bool last = panel + 1 == layout_.panels;
    const int64_t begin = panel * layout_.columns;
    const int64_t columns = last ? layout_.last_columns : layout_.columns;
    const size_t size = size_of(shape_.out_dtype);
    const auto offset = static_cast<size_t>(panel) * layout_.panel_bytes;
    char* out =
        static_cast<char*>(block.out) + static_cast<size_t>(begin - block.first_column) * size;
    const bool in_place = block.out_stride == columns && block.out_rows >= kRowCounts[index];
    char* to = in_place ? out : static_cast<char*>(block.tile);
    Kernel& kernel = last ? *last_panel_[index] : *panel_[index];
    kernel.run(block.x, static_cast<const char*>(block.weight) + offset,
               block.bias != nullptr ? block.bias + begin : nullptr, to, block.worker, workers_);
    if (in_place) return;
    const size_t bytes = static_cast<size_t>(columns) * size;
    const int64_t rows = std::min(block.out_rows, kRowCounts[index]);
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(out + static_cast<size_t>(row * block.out_stride) * size,
                  to + static_cast<size_t>(row) * bytes, bytes);
    }
  }

  // Returns whether so few rows are multiplied by multiply_stripe_, which gives them the same bits.
  bool in_stripes(int64_t rows) const { return rows <= kSkinnyRows && multiply_stripe_ != nullptr; }

  void run_stripes(const Block& block, int64_t first, int64_t columns) const {
    const CpuTimer timer(CpuPart::kProduct);
    MultiplyStripe task;
    task.x = block.x;
    task.x_stride = shape_.in_features;
    task.out_stride = block.out_stride;
    task.rows = block.rows;
    task.in_features = shape_.in_features;
    task.chunk = chunk_;
    task.stripe_bytes = static_cast<int64_t>(layout_.stripe_bytes);
    for (int64_t begin = first; begin < first + columns; begin += kStripeColumns) {
      task.weight = static_cast<const char*>(block.weight) + layout_.stripe_offset(begin);
      task.bias = shape_.bias ? block.bias + begin : nullptr;
      task.out = static_cast<char*>(block.out) +
                 static_cast<size_t>(begin - block.first_column) * size_of(shape_.out_dtype);
      task.columns = std::min(kStripeColumns, first + columns - begin);
      multiply_stripe_(task);
    }
  }

  // Makes a kernel for `rows` rows, but only with the oneDNN implementation that a full block has.
  // Another one would not agree, and might be oneDNN's slow reference code.
  bool make(int64_t rows, int64_t columns, const memory::desc& weight,
            std::optional<Kernel>& kernel) {
    const auto full = describe(shape_, kBlockRows, columns, &weight);
    const auto desc = describe(shape_, rows, columns, &weight);
    if (!full || !desc || std::string_view(desc.impl_info_str()) != full.impl_info_str())
      return false;
    kernel.emplace(desc, workers_);
    return true;
  }

  // A kernel that computes all panels at once, for a fixed number of rows, into contiguous rows of
  // out.
  struct AllPanels {
    int64_t rows;
    Kernel kernel;
  };

  // Returns the kernel for all panels that takes the most rows of the block, or null.
  AllPanels* all_panels_for(const Block& block) const {
    if (block.out_stride != shape_.out_features) return nullptr;
    const int64_t rows = block.rows < kBlockRows ? readable_rows(block.rows) : block.rows;
    for (AllPanels& all : all_panels_) {
      if (all.rows <= rows && all.rows <= block.out_rows) return &all;
    }
    return nullptr;
  }

  // Returns the index of the smallest usable block size that holds `rows` rows.
  size_t row_index(int64_t rows) const {
    for (size_t i = kRowCounts.size(); i-- > 1;) {
      if (usable_[i] && rows <= kRowCounts[i]) return i;
    }
    return 0;
  }

  // Runs every kernel on the same rows in two orders. A row must give the same result wherever it
  // stands. Smaller blocks and the kernel for stripes are dropped unless they agree with the panels
  // of a full block.
  void keep_what_agrees() {
    Probe probe(shape_, layout_, workers_);
    if (usable_[0]) probe.set_reference(*this);
    const auto agrees = [&](int64_t rows) { return probe.agrees(*this, rows); };
    if (!usable_[0] || !agrees(probe.rows)) {
      throw RuntimeError(concat("oneDNN's ", name_of(shape_.dtype), " matmul of ",
                                shape_.in_features, " x ", shape_.out_features,
                                " features does not treat all rows of a block alike on this CPU"));
    }
    for (size_t i = 1; i < kRowCounts.size(); ++i) {
      usable_[i] = usable_[i] && agrees(kRowCounts[i]);
    }
    if (shape_.activation != Activation::kNone || !is_in_stripes(layout_, shape_.dtype)) return;
    multiply_stripe_ = kernels_here().multiply_stripe[index_of(shape_.out_dtype)];
    if (multiply_stripe_ == nullptr) return;
    for (const int64_t chunk : kChunks) {
      chunk_ = chunk;
      int64_t rows = 1;
      while (rows <= kSkinnyRows && agrees(rows)) ++rows;
      if (rows > kSkinnyRows) return;
    }
    multiply_stripe_ = nullptr;
  }

  // Does so in a layer with fewer panels, whose kernels are those of this one.
  void keep_what_agrees_in_narrower() {
    DenseShape narrower = shape_;
    narrower.out_features = (kProbedPanels - 1) * layout_.columns + layout_.last_columns;
    const OneDnnGemm probed(narrower, workers_, false);
    usable_ = probed.usable_;
    multiply_stripe_ = probed.multiply_stripe_;
    chunk_ = probed.chunk_;
  }

  // Makes the kernels for all panels that agree with panels.
  void make_all_panels() {
    std::vector<AllPanels> candidates;
    for (int64_t blocks = blocks_at_once(shape_.dtype); blocks > 0; blocks /= 2) {
      const auto all = describe(shape_, blocks * kBlockRows, shape_.out_features);
      if (all && all.weights_desc().get_size() == layout_.bytes) {
        candidates.push_back({blocks * kBlockRows, Kernel(all, workers_)});
      }
    }
    if (candidates.empty()) return;
    Probe probe(shape_, layout_, workers_);
    probe.set_reference(*this);
    for (AllPanels& candidate : candidates) {
      all_panels_.push_back(std::move(candidate));
      if (!probe.agrees(*this, all_panels_.back().rows)) all_panels_.pop_back();
    }
  }

  const DenseShape shape_;
  const PackedLayout layout_;
  GemmWorkers& workers_;
  mutable std::array<std::optional<Kernel>, kRowCounts.size()> panel_;
  mutable std::array<std::optional<Kernel>, kRowCounts.size()> last_panel_;
  mutable std::vector<AllPanels> all_panels_;  // by descending number of rows
  std::array<bool, kRowCounts.size()> usable_ = {};
  void (*multiply_stripe_)(const MultiplyStripe&) = nullptr;
  int64_t chunk_ = 0;  // MultiplyStripe::chunk
};

class OneDnnEngine final : public GemmEngine {
 public:
  explicit OneDnnEngine(int workers) : workers_(workers) {}
  std::unique_ptr<Gemm> make(const DenseShape& shape) override {
    if (shape.dtype == DType::kInt8 && has_own_int8()) return make_panel_gemm(shape);
    if (shape.dtype == DType::kInt8) return make_onednn_int8_gemm(shape, workers_);
    const bool at_once = !shape.skinny || shape.out_features <= kWidestAtOnce;
    return std::make_unique<OneDnnGemm>(shape, workers_, at_once);
  }

 private:
  GemmWorkers workers_;
};

}  // namespace

std::unique_ptr<GemmEngine> make_gemm_engine(int workers) {
  return std::make_unique<OneDnnEngine>(workers);
}

}  // namespace packhorse::cpu
