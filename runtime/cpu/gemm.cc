#include "cpu/gemm.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <dnnl.hpp>
#include <optional>
#include <random>
#include <vector>

#include "core/format.h"
#include "packhorse/error.h"

// The OpenMP runtime is whichever oneDNN was linked with. Weak: nothing else here needs one, and a
// oneDNN built without OpenMP is single-threaded as it is.
extern "C" {
[[gnu::weak]] int omp_get_max_threads();
[[gnu::weak]] void omp_set_num_threads(int);
}

namespace packhorse::cpu {
namespace {

using dnnl::memory;

// Smaller blocks for the last rows of a batch. Not 1: a matrix-vector kernel sums in another order.
constexpr std::array<int64_t, 3> kRowCounts = {kBlockRows, 32, 16};

const dnnl::engine& engine() {
  static const dnnl::engine engine = [] {
    // Kernels live in GemmSet; oneDNN's own cache only saves work to a second session.
    dnnl::set_primitive_cache_capacity(256);
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return engine;
}

memory::data_type type_of(DType dtype) {
  return dtype == DType::kBFloat16 ? memory::data_type::bf16 : memory::data_type::f32;
}

std::optional<dnnl::algorithm> algorithm_of(Activation activation) {
  switch (activation) {
    case Activation::kNone:
      break;
    case Activation::kGelu:
      return dnnl::algorithm::eltwise_gelu_erf;
    case Activation::kGeluTanh:
      return dnnl::algorithm::eltwise_gelu_tanh;
    case Activation::kRelu:
      return dnnl::algorithm::eltwise_relu;
    case Activation::kSilu:
      return dnnl::algorithm::eltwise_swish;
    case Activation::kTanh:
      return dnnl::algorithm::eltwise_tanh;
    case Activation::kSigmoid:
      return dnnl::algorithm::eltwise_logistic;
  }
  return std::nullopt;
}

// The kernel for `rows` rows and `columns` of the shape's out_features; empty if there is none.
// Without `weight` oneDNN chooses the layout of the weight.
dnnl::matmul::primitive_desc describe(const GemmShape& shape, int64_t rows, int64_t columns,
                                      const memory::desc* weight = nullptr) {
  const memory::dims weight_dims = {shape.in_features, columns};
  const memory::desc x({rows, shape.in_features}, type_of(shape.dtype), memory::format_tag::ab);
  const memory::desc any(weight_dims, type_of(shape.dtype), memory::format_tag::any);
  const memory::desc bias =
      shape.bias ? memory::desc({1, columns}, memory::data_type::f32, memory::format_tag::ab)
                 : memory::desc();
  const memory::desc out({rows, columns}, type_of(shape.out_dtype), memory::format_tag::ab);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (const auto algorithm = algorithm_of(shape.activation)) {
    const float alpha = *algorithm == dnnl::algorithm::eltwise_swish ? 1.0f : 0.0f;
    dnnl::post_ops post_ops;
    post_ops.append_eltwise(*algorithm, alpha, 0.0f);
    attributes.set_post_ops(post_ops);
  }
  return {engine(), x, weight != nullptr ? *weight : any, bias, out, attributes, true};
}

// How a weight matrix lies in memory: all panels but the last are alike. The layout is that of the
// plain float32 layer; every kernel of the same matrix is made to take it.
struct PackedLayout {
  PackedLayout(int64_t in_features, int64_t out_features, DType dtype)
      : panels(panel_count(out_features, dtype)), columns(panel_width(dtype)) {
    const GemmShape shape = {in_features, out_features, dtype, DType::kFloat32};
    last_columns = out_features - (panels - 1) * columns;
    const auto last_panel = describe(shape, kBlockRows, last_columns);
    if (!last_panel) {
      throw RuntimeError(concat("oneDNN has no ", name_of(dtype), " matmul of ", in_features, " x ",
                                out_features, " features on this CPU"));
    }
    last = last_panel.weights_desc();
    full = panels > 1 ? describe(shape, kBlockRows, columns).weights_desc() : last;
    bytes = static_cast<size_t>(panels - 1) * full.get_size() + last.get_size();
  }

  int64_t panels;
  int64_t columns;       // of every panel but the last
  int64_t last_columns;  // of the last
  memory::desc full;
  memory::desc last;
  size_t bytes;
};

void pack_panel(const PackedLayout& layout, const float* weight, int64_t panel, void* packed) {
  const bool last = panel + 1 == layout.panels;
  const int64_t in_features = layout.last.get_dims()[0];
  const memory::desc plain({in_features, last ? layout.last_columns : layout.columns},
                           memory::data_type::f32, memory::format_tag::ba);
  // oneDNN takes no pointer to const, but only reads this one.
  memory from(plain, engine(), const_cast<float*>(weight) + panel * layout.columns * in_features);
  memory to(last ? layout.last : layout.full, engine(),
            static_cast<char*>(packed) + static_cast<size_t>(panel) * layout.full.get_size());
  dnnl::stream stream(engine());
  dnnl::reorder(from, to).execute(stream, from, to);
}

}  // namespace

CpuFeatures cpu_features() {
  const auto effective = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto has = [&](dnnl::cpu_isa isa) {
    return (effective & static_cast<unsigned>(isa)) == static_cast<unsigned>(isa);
  };
  CpuFeatures features;
  if (has(dnnl::cpu_isa::avx512_core)) {
    features.isa = Isa::kAvx512;
  } else if (has(dnnl::cpu_isa::avx2) && __builtin_cpu_supports("fma")) {
    features.isa = Isa::kAvx2;
  }
  features.bfloat16 = has(dnnl::cpu_isa::avx512_core_bf16);
  return features;
}

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

int64_t panel_width(DType dtype) { return dtype == DType::kBFloat16 ? 192 : 64; }

int64_t panel_count(int64_t out_features, DType dtype) {
  return (out_features + panel_width(dtype) - 1) / panel_width(dtype);
}

size_t packed_bytes(int64_t in_features, int64_t out_features, DType dtype) {
  const OneThreadScope one_thread;
  return PackedLayout(in_features, out_features, dtype).bytes;
}

void pack_weight(const float* weight, int64_t in_features, int64_t out_features, DType dtype,
                 void* packed, ThreadPool& pool) {
  const PackedLayout layout(in_features, out_features, dtype);
  pool.parallel_for(layout.panels,
                    [&](int64_t panel, int) { pack_panel(layout, weight, panel, packed); });
}

// What each worker needs to run any kernel.
struct GemmWorkers {
  explicit GemmWorkers(int count) : scratchpads(static_cast<size_t>(count)) {
    for (int i = 0; i < count; ++i) streams.emplace_back(engine());
  }
  void reserve(size_t bytes) {
    for (auto& scratchpad : scratchpads) {
      if (scratchpad.size() < bytes) scratchpad.resize(bytes);
    }
  }
  std::vector<dnnl::stream> streams;
  std::vector<std::vector<std::byte>> scratchpads;
};

namespace {

// One oneDNN primitive and, for each worker, the memory objects it is run with: making those anew
// would cost more than a small call.
class Kernel {
 public:
  Kernel(const dnnl::matmul::primitive_desc& desc, GemmWorkers& workers)
      : primitive_(desc), has_bias_(desc.bias_desc().get_size() != 0) {
    workers.reserve(desc.scratchpad_desc().get_size());
    for (size_t i = 0; i < workers.streams.size(); ++i) {
      const auto bind = [&](const memory::desc& md) { return memory(md, engine(), nullptr); };
      bound_.push_back({bind(desc.src_desc()), bind(desc.weights_desc()),
                        has_bias_ ? bind(desc.bias_desc()) : memory(), bind(desc.dst_desc()),
                        bind(desc.scratchpad_desc())});
    }
  }

  void run(const void* x, const void* weight, const float* bias, void* out, int worker,
           GemmWorkers& workers) {
    const auto index = static_cast<size_t>(worker);
    Bound& bound = bound_[index];
    bound.x.set_data_handle(const_cast<void*>(x));
    bound.weight.set_data_handle(const_cast<void*>(weight));
    bound.out.set_data_handle(out);
    bound.scratchpad.set_data_handle(workers.scratchpads[index].data());
    std::array<dnnl_exec_arg_t, 5> arguments = {{{DNNL_ARG_SRC, bound.x.get()},
                                                 {DNNL_ARG_WEIGHTS, bound.weight.get()},
                                                 {DNNL_ARG_DST, bound.out.get()},
                                                 {DNNL_ARG_SCRATCHPAD, bound.scratchpad.get()},
                                                 {}}};
    int count = 4;
    if (has_bias_) {
      bound.bias.set_data_handle(const_cast<float*>(bias));
      arguments[4] = {DNNL_ARG_BIAS, bound.bias.get()};
      count = 5;
    }
    const dnnl_status_t status = dnnl_primitive_execute(
        primitive_.get(), workers.streams[index].get(), count, arguments.data());
    if (status != dnnl_success) {
      throw RuntimeError(concat("oneDNN's matmul failed with status ", static_cast<int>(status)));
    }
  }

 private:
  struct Bound {
    memory x, weight, bias, out, scratchpad;
  };
  dnnl::matmul primitive_;
  bool has_bias_;
  std::vector<Bound> bound_;
};

// Equal rows of random numbers and a random layer, to see whether kernels agree.
class Probe {
 public:
  Probe(const GemmShape& shape, const PackedLayout& layout, GemmWorkers& workers)
      : shape_(shape),
        bias_(static_cast<size_t>(shape.out_features)),
        packed_(layout.bytes),
        x_(static_cast<size_t>(kRows * shape.in_features) * size_of(shape.dtype)),
        out_(static_cast<size_t>(kRows) * row_bytes()),
        tile_(Gemm::tile_bytes(shape.dtype)) {
    const auto in_features = static_cast<size_t>(shape.in_features);
    std::minstd_rand random(1);
    const auto fill = [&](std::vector<float>& values) {
      for (float& value : values) {
        value = static_cast<float>(random()) / static_cast<float>(random.max()) - 0.5f;
      }
    };
    std::vector<float> weight(in_features * bias_.size());
    std::vector<float> x(in_features);
    fill(weight);
    fill(bias_);
    fill(x);
    for (int64_t panel = 0; panel < layout.panels; ++panel) {
      pack_panel(layout, weight.data(), panel, packed_.data());
    }
    std::vector<float> rows;
    for (int64_t i = 0; i < kRows; ++i) rows.insert(rows.end(), x.begin(), x.end());
    const memory::dims dims = {kRows, shape.in_features};
    memory from({dims, memory::data_type::f32, memory::format_tag::ab}, engine(), rows.data());
    memory to({dims, type_of(shape.dtype), memory::format_tag::ab}, engine(), x_.data());
    dnnl::reorder(from, to).execute(workers.streams[0], from, to);
  }

  // Whether all of `rows` rows come out as `reference`, which the first call sets.
  bool rows_equal(const Gemm& gemm, int64_t rows, std::vector<std::byte>& reference) const {
    Gemm::Block block;
    block.x = x_.data();
    block.rows = rows;
    block.weight = packed_.data();
    block.bias = shape_.bias ? bias_.data() : nullptr;
    block.out = out_.data();
    block.out_stride = shape_.out_features;
    block.out_rows = rows;
    block.tile = tile_.data();
    gemm.run(block);
    if (reference.empty()) reference.assign(out_.begin(), out_.begin() + row_bytes());
    for (int64_t i = 0; i < rows; ++i) {
      const std::byte* found = out_.data() + i * row_bytes();
      if (std::memcmp(found, reference.data(), reference.size()) != 0) return false;
    }
    return true;
  }

 private:
  static constexpr int64_t kRows = kBlockRows * 4;

  int64_t row_bytes() const {
    return shape_.out_features * static_cast<int64_t>(size_of(shape_.out_dtype));
  }

  const GemmShape shape_;
  std::vector<float> bias_;
  std::vector<std::byte> packed_;
  std::vector<std::byte> x_;
  mutable std::vector<std::byte> out_;
  mutable std::vector<std::byte> tile_;
};

class OneDnnGemm final : public Gemm {
 public:
  OneDnnGemm(const GemmShape& shape, GemmWorkers& workers)
      : shape_(shape),
        layout_(shape.in_features, shape.out_features, shape.dtype),
        workers_(workers) {
    const std::string wanted =
        describe(shape, kBlockRows, layout_.last_columns, &layout_.last).impl_info_str();
    // Another implementation would not agree, and may be oneDNN's slow reference code.
    const auto make = [&](const dnnl::matmul::primitive_desc& desc, std::optional<Kernel>& kernel) {
      if (!desc || wanted != desc.impl_info_str()) return false;
      kernel.emplace(desc, workers);
      return true;
    };
    for (size_t i = 0; i < kRowCounts.size(); ++i) {
      const int64_t rows = kRowCounts[i];
      usable_[i] =
          make(describe(shape, rows, layout_.last_columns, &layout_.last), last_panel_[i]) &&
          (layout_.panels == 1 ||
           make(describe(shape, rows, layout_.columns, &layout_.full), panel_[i]));
    }
    for (int64_t blocks = blocks_at_once(shape.dtype); blocks > 0; blocks /= 2) {
      const auto all = describe(shape, blocks * kBlockRows, shape.out_features);
      std::optional<Kernel> kernel;
      if (all && all.weights_desc().get_size() == layout_.bytes && make(all, kernel)) {
        all_panels_.push_back({blocks * kBlockRows, std::move(*kernel)});
      }
    }
    keep_what_agrees();
  }

  int64_t readable_rows(int64_t rows) const override { return kRowCounts[row_index(rows)]; }

  void run(const Block& block) const override {
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

  void run_panel(const Block& block, int64_t panel) const override {
    const size_t index = row_index(block.rows);
    const bool last = panel + 1 == layout_.panels;
    const int64_t begin = panel * layout_.columns;
    const int64_t columns = last ? layout_.last_columns : layout_.columns;
    const size_t size = size_of(shape_.out_dtype);
    const auto offset = static_cast<size_t>(panel) * layout_.full.get_size();
    char* out = static_cast<char*>(block.out) + static_cast<size_t>(begin) * size;
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

 private:
  // All panels at once, for a fixed number of rows, into contiguous rows of out.
  struct AllPanels {
    int64_t rows;
    Kernel kernel;
  };

  // The one that takes the most rows of the block, or null.
  AllPanels* all_panels_for(const Block& block) const {
    if (block.out_stride != shape_.out_features) return nullptr;
    const int64_t rows = block.rows < kBlockRows ? readable_rows(block.rows) : block.rows;
    for (AllPanels& all : all_panels_) {
      if (all.rows <= rows && all.rows <= block.out_rows) return &all;
    }
    return nullptr;
  }

  // The smallest usable block that holds `rows`.
  size_t row_index(int64_t rows) const {
    for (size_t i = kRowCounts.size(); i-- > 1;) {
      if (usable_[i] && rows <= kRowCounts[i]) return i;
    }
    return 0;
  }

  // Runs every kernel on equal rows. All rows must come out equal; a smaller block and a kernel
  // over all panels must agree with the panels of a full block, or are not used.
  void keep_what_agrees() {
    std::vector<AllPanels> candidates = std::exchange(all_panels_, {});
    const Probe probe(shape_, layout_, workers_);
    std::vector<std::byte> reference;
    const auto agrees = [&](int64_t rows) { return probe.rows_equal(*this, rows, reference); };
    if (!usable_[0] || !agrees(kBlockRows)) {
      throw RuntimeError(concat("oneDNN's ", name_of(shape_.dtype), " matmul of ",
                                shape_.in_features, " x ", shape_.out_features,
                                " features treats equal rows of a block unequally on this CPU"));
    }
    for (size_t i = 1; i < kRowCounts.size(); ++i) {
      usable_[i] = usable_[i] && agrees(kRowCounts[i]);
    }
    for (AllPanels& candidate : candidates) {
      all_panels_.push_back(std::move(candidate));
      if (!agrees(all_panels_.back().rows)) all_panels_.pop_back();
    }
  }

  const GemmShape shape_;
  const PackedLayout layout_;
  GemmWorkers& workers_;
  mutable std::array<std::optional<Kernel>, kRowCounts.size()> panel_;
  mutable std::array<std::optional<Kernel>, kRowCounts.size()> last_panel_;
  mutable std::vector<AllPanels> all_panels_;  // most rows first
  std::array<bool, kRowCounts.size()> usable_ = {};
};

}  // namespace

GemmSet::GemmSet(int workers) : workers_(std::make_unique<GemmWorkers>(workers)) {}
GemmSet::~GemmSet() = default;

const Gemm& GemmSet::get(const GemmShape& shape) {
  std::unique_ptr<Gemm>& gemm = gemms_[shape];
  if (gemm == nullptr) gemm = std::make_unique<OneDnnGemm>(shape, *workers_);
  return *gemm;
}

}  // namespace packhorse::cpu
