#include "cpu/linear_int8.h"

#include <algorithm>

#include "core/cpu_profile.h"
#include "cpu/gemm_int8.h"
#include "cpu/linear.h"
#include "cpu/row_ops.h"
#include "cpu/workspace.h"

namespace packhorse::cpu {
namespace {

// Rows of one task of what is done row by row to split blocks.
constexpr int64_t kTaskRows = 8;

int64_t block_count(int64_t rows) { return (rows + kBlockRows - 1) / kBlockRows; }

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
        // The most blocks that are split in any batch of up to `rows` rows.
        split(workspace, std::min<int64_t>(block_count(rows), threads - 1) * kBlockRows, sizes),
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
  TensorView residual;
  NormWeight norm;
  TensorView out;
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

  bool finishes() const { return residual || norm; }
  Target target(int64_t row, float* result) const {
    if (finishes()) return {result, sizes.out_features, DType::kFloat32};
    return {row_at(out, row), out.row_stride, out.dtype};
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
  void finish(int64_t first_row, int64_t rows, const float* result) const;
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

void Chain::finish(int64_t first_row, int64_t rows, const float* result) const {
  const CpuTimer timer(CpuPart::kNorm);
  NormRows task;
  task.x = result;
  task.x_stride = sizes.out_features;
  if (residual) {
    task.residual = row_at(residual, first_row);
    task.residual_stride = residual.row_stride;
  }
  task.out = row_at(out, first_row);
  task.out_stride = out.row_stride;
  task.rows = rows;
  task.columns = sizes.out_features;
  task.norm = params_of(norm);
  kernels.norm_rows[0][index_of(out.dtype)](task);
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
  if (finishes()) finish(row, rows, own.result);
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
  if (!finishes()) return;
  for_rows([&](int64_t row, int64_t count) {
    finish(first_row + row, count, split.result + row * sizes.out_features);
  });
}

void Chain::run() const {
  const int threads = pool.threads();
  const int64_t rows = x.rows();
  const int64_t whole = block_count(rows) / threads * threads;
  if (whole > 0) {
    // Dealt in equal parts, as many blocks at once as may be.
    const int64_t per_thread = whole / threads;
    const int64_t parts =
        threads * ((per_thread + scratch.worker_blocks - 1) / scratch.worker_blocks);
    const auto first_of = [&](int64_t part) {
      return std::min(rows, (part * (whole / parts) + std::min(part, whole % parts)) * kBlockRows);
    };
    pool.parallel_for(parts, [&](int64_t part, int worker) {
      run_whole(first_of(part), first_of(part + 1) - first_of(part), worker);
    });
  }
  const int64_t done = std::min(rows, whole * kBlockRows);
  if (done < rows) run_split(done, rows - done);
}

Sizes sizes_of_feed_forward(int64_t hidden_size, int64_t intermediate_size, bool gated,
                            DType floats) {
  return {hidden_size, intermediate_size * (gated ? 2 : 1), intermediate_size, hidden_size, floats};
}

size_t workspace_of(int64_t rows, const Sizes& sizes, int threads) {
  Workspace workspace;
  Scratch(workspace, rows, sizes, threads);
  return workspace.bytes();
}

}  // namespace

size_t linear_int8_workspace(int64_t rows, int64_t in_features, int64_t out_features, DType floats,
                             int threads) {
  return workspace_of(rows, {in_features, 0, 0, out_features, floats}, threads);
}

size_t feed_forward_int8_workspace(int64_t rows, int64_t hidden_size, int64_t intermediate_size,
                                   bool gated, DType floats, int threads) {
  return workspace_of(rows, sizes_of_feed_forward(hidden_size, intermediate_size, gated, floats),
                      threads);
}

void linear_int8(const LinearArgs& args, GemmSet& gemms, const Kernels& kernels, ThreadPool& pool) {
  const Sizes sizes = {args.x.columns(), 0, 0, args.out.columns(), args.x.dtype};
  Workspace workspace(args.workspace);
  const Scratch scratch(workspace, args.x.rows(), sizes, pool.threads());
  Chain{args.x,    {},       Layer(args.weight, args.activation, gemms),
        false,     {},       args.residual,
        args.norm, args.out, sizes,
        scratch,   kernels,  pool}
      .run();
}

void feed_forward_int8(const FeedForwardArgs& args, GemmSet& gemms, const Kernels& kernels,
                       ThreadPool& pool) {
  const Sizes sizes =
      sizes_of_feed_forward(args.x.columns(), args.down.in_features, args.gated, args.x.dtype);
  Workspace workspace(args.workspace);
  const Scratch scratch(workspace, args.x.rows(), sizes, pool.threads());
  const Activation inside = args.gated ? Activation::kNone : args.activation;
  Chain{args.x,
        Layer(args.up, inside, gemms),
        Layer(args.down, Activation::kNone, gemms),
        args.gated,
        args.activation,
        args.residual,
        args.norm,
        args.out,
        sizes,
        scratch,
        kernels,
        pool}
      .run();
}

}  // namespace packhorse::cpu
