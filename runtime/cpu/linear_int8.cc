#include "cpu/linear_int8.h"

#include <algorithm>

#include "cpu/gemm_int8.h"
#include "cpu/partition.h"
#include "cpu/profile.h"
#include "cpu/row_ops.h"
#include "cpu/workspace.h"

namespace packhorse::cpu {
namespace {

// Rows of one task of what is done row by row to split blocks.
constexpr int64_t kTaskRows = 8;

// Rows of bytes, and what they stand for.
struct Quantized {
  uint8_t* values = nullptr;
  float* scales = nullptr;
  float* offsets = nullptr;

  static Quantized take(Workspace& workspace, int64_t rows, int64_t columns) {
    return {workspace.take<uint8_t>(rows * columns), workspace.take<float>(rows),
            workspace.take<float>(rows)};
  }
  Quantized from(int64_t row, int64_t columns) const {
    return {values + row * columns, scales + row, offsets + row};
  }
};

struct Sizes {
  int64_t in_features = 0;
  int64_t up_features = 0;     // 0 for a linear layer, twice the intermediate size for a gated one
  int64_t inner_features = 0;  // 0 for a linear layer
  int64_t out_features = 0;
  DType floats = DType::kFloat32;
};

// What a chain keeps between its steps, for some rows at once.
struct Buffers {
  Buffers(Workspace& workspace, int64_t rows, const Sizes& sizes)
      : x(Quantized::take(workspace, rows, sizes.in_features)),
        up(workspace.take(rows * sizes.up_features * static_cast<int64_t>(size_of(sizes.floats)))),
        inner(Quantized::take(workspace, rows, sizes.inner_features)),
        result(workspace.take<float>(rows * sizes.out_features)) {}

  Quantized x;
  std::byte* up;    // [rows, up_features]; gated where it lies
  Quantized inner;  // [rows, inner_features]
  float* result;    // [rows, out_features] before residual and norm
};

struct Scratch {
  Scratch(Workspace& workspace, int64_t rows, const Sizes& sizes, int threads)
      : worker_blocks(std::min(blocks_at_once(DType::kInt8), block_count(rows))),
        sums(workspace.take<int32_t>(threads * kSums)),
        split(workspace, Partition::split_capacity(rows, threads) * kBlockRows, sizes),
        sizes_(sizes) {
    Workspace one;
    Buffers(one, worker_blocks * kBlockRows, sizes);
    worker_bytes_ = static_cast<int64_t>(one.bytes());
    workers_ = workspace.take(threads * worker_bytes_);
  }

  Buffers worker(int index) const {
    Workspace own(workers_ + index * worker_bytes_);
    return Buffers(own, worker_blocks * kBlockRows, sizes_);
  }

  // Columns of the widest panel.
  static inline const int64_t kSums = Int8Gemm::kMostRows * panel_width(DType::kInt8);

  int64_t worker_blocks;  // that a worker takes at once
  int32_t* sums;          // [threads, kSums] of one panel
  Buffers split;          // of the split blocks

 private:
  Sizes sizes_;
  int64_t worker_bytes_;
  std::byte* workers_;
};

struct Layer {
  Layer() = default;
  Layer(const LinearWeight& weight, Activation activation, GemmSet& gemms)
      : gemm(&gemms.get_int8(weight.in_features, weight.out_features)),
        parts(weight.data, gemm->panel_bytes(), weight.out_features),
        bias(weight.bias),
        activation(activation) {}

  const Int8Gemm* gemm = nullptr;
  Int8Weight parts = {nullptr, 0, 0};
  const float* bias = nullptr;
  Activation activation = Activation::kNone;

  explicit operator bool() const { return gemm != nullptr; }
};

// One op: x through `up`, if there is one, then through `last`, into out.
struct Chain {
  TensorView x;
  Layer up;
  Layer last;
  bool gated;
  Activation gate;  // applied by a gated `up`
  RowsEnd end;
  const Sizes& sizes;
  const Scratch& scratch;
  const Kernels& kernels;
  ThreadPool& pool;

  void run() const;

 private:
  struct Target {
    void* data;
    int64_t stride;
    DType dtype;
  };

  Target target(int64_t row, float* result) const {
    if (end) return {result, sizes.out_features, DType::kFloat32};
    return {row_at(end.out, row), end.out.row_stride, end.out.dtype};
  }
  Target inner(std::byte* up_rows) const { return {up_rows, sizes.up_features, sizes.floats}; }

  void quantize_x(int64_t row, int64_t rows, const Quantized& to) const;
  void quantize_inner(std::byte* up_rows, int64_t rows, const Quantized& to) const;
  void quantize(const void* from, int64_t stride, int64_t rows, int64_t columns,
                const Quantized& to) const;
  void run_panel(const Layer& layer, const Quantized& from, int64_t rows, int64_t panel,
                 const Target& to, int worker) const;
  void run_whole(int64_t row, int64_t rows, int worker) const;
  void run_split(int64_t first_row, int64_t rows) const;
};

void Chain::quantize(const void* from, int64_t stride, int64_t rows, int64_t columns,
                     const Quantized& to) const {
  const CpuTimer timer(CpuPart::kQuantize);
  kernels.quantize_rows[index_of(sizes.floats)]({from, stride, rows, columns,
                                                 static_cast<float>(int8_levels()), to.values,
                                                 to.scales, to.offsets});
}

void Chain::quantize_x(int64_t row, int64_t rows, const Quantized& to) const {
  quantize(row_at(x, row), x.row_stride, rows, sizes.in_features, to);
}

void Chain::quantize_inner(std::byte* up_rows, int64_t rows, const Quantized& to) const {
  if (gated) {
    const CpuTimer timer(CpuPart::kOther);
    kernels.gate_rows[index_of(sizes.floats)](
        {up_rows, up_rows, sizes.up_features, sizes.up_features, rows, sizes.inner_features, gate});
  }
  quantize(up_rows, sizes.up_features, rows, sizes.inner_features, to);
}

void Chain::run_panel(const Layer& layer, const Quantized& from, int64_t rows, int64_t panel,
                      const Target& to, int worker) const {
  int32_t* sums = scratch.sums + worker * Scratch::kSums;
  layer.gemm->run(from.values, rows, layer.parts.panels, panel, sums, worker);
  const int64_t begin = panel * panel_width(DType::kInt8);
  const CpuTimer timer(CpuPart::kQuantize);
  kernels.dequantize_rows[index_of(to.dtype)](
      {sums, from.scales, from.offsets, layer.parts.scales + begin, layer.parts.sums + begin,
       layer.bias != nullptr ? layer.bias + begin : nullptr,
       static_cast<char*>(to.data) + static_cast<size_t>(begin) * size_of(to.dtype), to.stride,
       rows, layer.gemm->columns(panel), layer.activation});
}

void Chain::run_whole(int64_t row, int64_t rows, int worker) const {
  const Buffers own = scratch.worker(worker);
  const auto run_layer = [&](const Layer& layer, const Quantized& from, const Target& to) {
    for (int64_t panel = 0; panel < layer.gemm->panels(); ++panel) {
      run_panel(layer, from, rows, panel, to, worker);
    }
  };
  quantize_x(row, rows, own.x);
  if (up) {
    run_layer(up, own.x, inner(own.up));
    quantize_inner(own.up, rows, own.inner);
  }
  run_layer(last, up ? own.inner : own.x, target(row, own.result));
  if (end) end.run(own.result, row, rows, kernels);
}

// Panel by panel of each block, or row by row.
void Chain::run_split(int64_t first_row, int64_t rows) const {
  const Buffers& split = scratch.split;
  const auto for_rows = [&](auto body) {
    pool.parallel_for((rows + kTaskRows - 1) / kTaskRows, [&](int64_t task, int) {
      const int64_t row = task * kTaskRows;
      body(row, std::min(kTaskRows, rows - row));
    });
  };
  const auto run_layer = [&](const Layer& layer, const Quantized& from, int64_t in_features,
                             const Target& to) {
    const int64_t panels = layer.gemm->panels();
    pool.parallel_for(block_count(rows) * panels, [&](int64_t task, int worker) {
      const int64_t row = task / panels * kBlockRows;
      const Target block = {
          static_cast<char*>(to.data) + static_cast<size_t>(row * to.stride) * size_of(to.dtype),
          to.stride, to.dtype};
      run_panel(layer, from.from(row, in_features), std::min(kBlockRows, rows - row), task % panels,
                block, worker);
    });
  };
  for_rows([&](int64_t row, int64_t count) {
    quantize_x(first_row + row, count, split.x.from(row, sizes.in_features));
  });
  if (up) {
    run_layer(up, split.x, sizes.in_features, inner(split.up));
    const auto up_row_bytes = sizes.up_features * static_cast<int64_t>(size_of(sizes.floats));
    for_rows([&](int64_t row, int64_t count) {
      quantize_inner(split.up + row * up_row_bytes, count,
                     split.inner.from(row, sizes.inner_features));
    });
  }
  const Target to = target(first_row, split.result);
  if (up) {
    run_layer(last, split.inner, sizes.inner_features, to);
  } else {
    run_layer(last, split.x, sizes.in_features, to);
  }
  if (!end) return;
  for_rows([&](int64_t row, int64_t count) {
    end.run(split.result + row * sizes.out_features, first_row + row, count, kernels);
  });
}

void Chain::run() const {
  const int64_t rows = x.rows();
  const Partition partition(rows, scratch.worker_blocks * kBlockRows, false, pool.threads());
  pool.parallel_for(partition.parts(), [&](int64_t part, int worker) {
    const int64_t row = partition.first_row(part);
    run_whole(row, partition.first_row(part + 1) - row, worker);
  });
  if (partition.split() == 0) return;
  const int64_t row = partition.first_row_of_split(0);
  run_split(row, rows - row);
}

Sizes sizes_of_linear(int64_t in_features, int64_t out_features, DType floats) {
  return {.in_features = in_features, .out_features = out_features, .floats = floats};
}

Sizes sizes_of_feed_forward(int64_t hidden_size, int64_t intermediate_size, bool gated,
                            DType floats) {
  return {.in_features = hidden_size,
          .up_features = intermediate_size * (gated ? 2 : 1),
          .inner_features = intermediate_size,
          .out_features = hidden_size,
          .floats = floats};
}

size_t workspace_of(int64_t rows, const Sizes& sizes, int threads) {
  Workspace workspace;
  Scratch(workspace, rows, sizes, threads);
  return workspace.bytes();
}

}  // namespace

size_t linear_int8_workspace(int64_t rows, int64_t in_features, int64_t out_features, DType floats,
                             int threads) {
  return workspace_of(rows, sizes_of_linear(in_features, out_features, floats), threads);
}

size_t feed_forward_int8_workspace(int64_t rows, int64_t hidden_size, int64_t intermediate_size,
                                   bool gated, DType floats, int threads) {
  return workspace_of(rows, sizes_of_feed_forward(hidden_size, intermediate_size, gated, floats),
                      threads);
}

void linear_int8(const LinearArgs& args, GemmSet& gemms, const Kernels& kernels, ThreadPool& pool) {
  const Sizes sizes = sizes_of_linear(args.x.columns(), args.out.columns(), args.x.dtype);
  Workspace workspace(args.workspace);
  const Scratch scratch(workspace, args.x.rows(), sizes, pool.threads());
  Chain{.x = args.x,
        .up = {},
        .last = Layer(args.weight, args.activation, gemms),
        .gated = false,
        .gate = Activation::kNone,
        .end = {.residual = args.residual, .norm = args.norm, .out = args.out},
        .sizes = sizes,
        .scratch = scratch,
        .kernels = kernels,
        .pool = pool}
      .run();
}

void feed_forward_int8(const FeedForwardArgs& args, GemmSet& gemms, const Kernels& kernels,
                       ThreadPool& pool) {
  const Sizes sizes =
      sizes_of_feed_forward(args.x.columns(), args.down.in_features, args.gated, args.x.dtype);
  Workspace workspace(args.workspace);
  const Scratch scratch(workspace, args.x.rows(), sizes, pool.threads());
  const Activation inside = args.gated ? Activation::kNone : args.activation;
  Chain{.x = args.x,
        .up = Layer(args.up, inside, gemms),
        .last = Layer(args.down, Activation::kNone, gemms),
        .gated = args.gated,
        .gate = args.activation,
        .end = {.residual = args.residual, .norm = args.norm, .out = args.out},
        .sizes = sizes,
        .scratch = scratch,
        .kernels = kernels,
        .pool = pool}
      .run();
}

}  // namespace packhorse::cpu
