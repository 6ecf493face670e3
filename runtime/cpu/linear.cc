#include "cpu/linear.h"

#include <algorithm>
#include <cstring>

#include "cpu/partition.h"
#include "cpu/profile.h"
#include "cpu/row_ops.h"
#include "cpu/workspace.h"

namespace packhorse::cpu {
namespace {

// Rows of one task of the norm after split blocks.
constexpr int64_t kNormRows = 8;

// Of the inner rows of a part: they stay in the second-level cache, beside a panel of weights.
constexpr int64_t kPartBytes = 1 << 20;

int64_t blocks_of_part(DType dtype, int64_t up_features) {
  const int64_t most = blocks_at_once(dtype);
  if (!takes_any_rows(dtype) || up_features == 0) return most;
  const auto block_bytes = kBlockRows * up_features * static_cast<int64_t>(sizeof(float));
  return std::clamp<int64_t>(kPartBytes / block_bytes, 1, most);
}

// What a chain keeps between its steps: for each worker, and for the split blocks.
struct Scratch {
  // up_features: 0 for a linear layer, twice the intermediate size for a gated one.
  Scratch(Workspace& workspace, int64_t rows, int64_t in_features, int64_t up_features, bool gated,
          int64_t out_features, DType dtype, int threads)
      : worker_blocks(std::min(blocks_of_part(dtype, up_features), block_count(rows))),
        in_bytes(takes_any_rows(dtype) ? 0 : kBlockRows * in_features * size_of(dtype)),
        up_bytes(kBlockRows * up_features * size_of(dtype)),
        result_floats(kBlockRows * out_features),
        tile_bytes(takes_any_rows(dtype) ? 0 : Gemm::tile_bytes(dtype)),
        staged(workspace.take<int64_t>(threads)),
        in(workspace.take(threads * in_bytes)),
        tile(workspace.take(threads * tile_bytes)),
        middle(workspace.take(threads * worker_blocks * up_bytes)),
        result(workspace.take<float>(threads * worker_blocks * result_floats)),
        split_up(workspace.take(Partition::split_capacity(rows, threads) * up_bytes)),
        split_middle(gated ? workspace.take(Partition::split_capacity(rows, threads) * up_bytes / 2)
                           : split_up),
        split_result(
            workspace.take<float>(Partition::split_capacity(rows, threads) * result_floats)) {}

  int64_t worker_blocks;  // that a worker takes at once
  int64_t in_bytes, up_bytes, result_floats, tile_bytes;
  int64_t* staged;    // [threads] the first row that `in` holds, or -1
  std::byte* in;      // [threads, 64, in_features]: rows that cannot be read in place; not float32
  std::byte* tile;    // [threads, 64, panel]; not float32
  std::byte* middle;  // [threads, worker_blocks, 64, up_features]
  float* result;      // [threads, worker_blocks, 64, out_features] before residual and norm
  std::byte* split_up;      // [split blocks, 64, up_features]
  std::byte* split_middle;  // [split blocks, 64, intermediate]: split_up, unless gated
  float* split_result;      // [split blocks, 64, out_features]
};

struct Layer {
  const Gemm* gemm = nullptr;
  const LinearWeight* weight = nullptr;

  explicit operator bool() const { return gemm != nullptr; }
  int64_t panels() const { return panel_count(weight->out_features, weight->dtype); }
};

// One op: x through `up`, if there is one, then through `last`, into out.
struct Chain {
  TensorView x;
  Layer up;
  Layer last;
  bool gated;
  Activation gate;  // applied by a gated `up`
  RowsEnd end;
  const Scratch& scratch;
  const Kernels& kernels;
  ThreadPool& pool;

  void run() const;

 private:
  struct Target {
    void* data;
    int64_t stride;
    int64_t rows;  // that may be written
  };

  bool contiguous() const { return x.row_stride == x.columns(); }
  // Rows of x, or of what `up` made of them, as a kernel reads them.
  struct Source {
    const void* data;
    int64_t stride;
  };
  Source input(const Layer& layer, int64_t first_row, int64_t rows, int worker) const;
  Target target(int64_t first_row, int64_t rows, float* result) const;
  Gemm::Block call(const Layer& layer, int64_t rows, const Source& from, const Target& to,
                   int worker) const;
  void run_whole(int64_t first_row, int64_t rows, int worker) const;
  void run_up_panel(const Source& from, int64_t rows, int64_t panel, int64_t i, int worker) const;
};

// In place where they can be read as the kernel wants; else copied, once for all panels that a
// worker takes in a row.
Chain::Source Chain::input(const Layer& layer, int64_t first_row, int64_t rows, int worker) const {
  const char* from = row_at(x, first_row);
  const int64_t readable = rows <= kBlockRows ? layer.gemm->readable_rows(rows) : rows;
  if (takes_any_rows(x.dtype) || (rows == readable && contiguous())) {
    return {from, x.row_stride};
  }
  std::byte* to = scratch.in + worker * scratch.in_bytes;
  const Source copy = {to, x.columns()};
  if (scratch.staged[worker] == first_row) return copy;
  const size_t bytes = static_cast<size_t>(x.columns()) * size_of(x.dtype);
  const size_t stride = static_cast<size_t>(x.row_stride) * size_of(x.dtype);
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(to + static_cast<size_t>(i) * bytes, from + static_cast<size_t>(i) * stride, bytes);
  }
  std::memset(to + static_cast<size_t>(rows) * bytes, 0,
              static_cast<size_t>(readable - rows) * bytes);
  scratch.staged[worker] = first_row;
  return copy;
}

Chain::Target Chain::target(int64_t first_row, int64_t rows, float* result) const {
  if (end) return {result, end.out.columns(), block_count(rows) * kBlockRows};
  return {row_at(end.out, first_row), end.out.row_stride, rows};
}

Gemm::Block Chain::call(const Layer& layer, int64_t rows, const Source& from, const Target& to,
                        int worker) const {
  return {.x = from.data,
          .x_stride = from.stride,
          .rows = rows,
          .weight = layer.weight->data,
          .bias = layer.weight->bias,
          .out = to.data,
          .out_stride = to.stride,
          .out_rows = to.rows,
          .tile = scratch.tile + worker * scratch.tile_bytes,
          .worker = worker};
}

void Chain::run_whole(int64_t first_row, int64_t rows, int worker) const {
  Source from = input(up ? up : last, first_row, rows, worker);
  if (up) {
    std::byte* middle = scratch.middle + worker * scratch.worker_blocks * scratch.up_bytes;
    const int64_t features = up.weight->out_features;
    const Target to = {middle, features, scratch.worker_blocks * kBlockRows};
    up.gemm->run(call(up, rows, from, to, worker));
    if (gated) {
      const CpuTimer timer(CpuPart::kOther);
      kernels.gate_rows[index_of(x.dtype)](
          {middle, middle, features, features / 2, rows, features / 2, gate});
    }
    from = {middle, last.weight->in_features};
  }
  float* result = scratch.result + worker * scratch.worker_blocks * scratch.result_floats;
  last.gemm->run(call(last, rows, from, target(first_row, rows, result), worker));
  if (end) end.run(result, first_row, rows, kernels);
}

// One panel of `up` for the i-th split block, gated where it lies: panels end between pairs.
void Chain::run_up_panel(const Source& from, int64_t rows, int64_t panel, int64_t i,
                         int worker) const {
  const int64_t features = up.weight->out_features;
  std::byte* wide = scratch.split_up + i * scratch.up_bytes;
  up.gemm->run_panel(call(up, rows, from, {wide, features, kBlockRows}, worker), panel);
  if (!gated) return;
  const CpuTimer timer(CpuPart::kOther);
  const int64_t width = panel_width(x.dtype);
  const int64_t begin = panel * width;
  const int64_t columns = std::min(width, features - begin) / 2;
  const auto size = static_cast<int64_t>(size_of(x.dtype));
  std::byte* narrow = scratch.split_middle + i * scratch.up_bytes / 2;
  kernels.gate_rows[index_of(x.dtype)]({wide + begin * size, narrow + begin / 2 * size, features,
                                        features / 2, rows, columns, gate});
}

void Chain::run() const {
  const int threads = pool.threads();
  const int64_t rows = x.rows();
  const bool any_rows = takes_any_rows(x.dtype);
  const int64_t at_once = contiguous() || any_rows ? scratch.worker_blocks : 1;
  const Partition partition(rows, at_once * kBlockRows, any_rows, threads);
  std::fill(scratch.staged, scratch.staged + threads, -1);

  const Layer& first = up ? up : last;
  const int64_t panels = first.panels();
  const int64_t parts = partition.parts();
  const int64_t split = partition.split();
  // Of the i-th split block.
  const auto split_rows = [&](int64_t i) {
    return partition.first_row_of_split(i + 1) - partition.first_row_of_split(i);
  };
  const auto split_target = [&](int64_t i) {
    return target(partition.first_row_of_split(i), split_rows(i),
                  scratch.split_result + i * scratch.result_floats);
  };
  pool.parallel_for(parts + split * panels, [&](int64_t task, int worker) {
    if (task < parts) {
      const int64_t row = partition.first_row(task);
      return run_whole(row, partition.first_row(task + 1) - row, worker);
    }
    const int64_t i = (task - parts) / panels;
    const int64_t panel = (task - parts) % panels;
    const int64_t block_rows = split_rows(i);
    const Source from = input(first, partition.first_row_of_split(i), block_rows, worker);
    if (up) return run_up_panel(from, block_rows, panel, i, worker);
    last.gemm->run_panel(call(last, block_rows, from, split_target(i), worker), panel);
  });
  if (split == 0) return;
  if (up) {
    const int64_t last_panels = last.panels();
    const int64_t middle_bytes = scratch.up_bytes / (gated ? 2 : 1);
    pool.parallel_for(split * last_panels, [&](int64_t task, int worker) {
      const int64_t i = task / last_panels;
      const Source from = {scratch.split_middle + i * middle_bytes, last.weight->in_features};
      last.gemm->run_panel(call(last, split_rows(i), from, split_target(i), worker),
                           task % last_panels);
    });
  }
  if (!end) return;
  const int64_t tasks_of_block = kBlockRows / kNormRows;
  pool.parallel_for(split * tasks_of_block, [&](int64_t task, int) {
    const int64_t i = task / tasks_of_block;
    const int64_t row = task % tasks_of_block * kNormRows;
    const int64_t count = std::min(kNormRows, split_rows(i) - row);
    if (count <= 0) return;
    end.run(scratch.split_result + i * scratch.result_floats + row * end.out.columns(),
            partition.first_row_of_split(i) + row, count, kernels);
  });
}

Layer layer_of(const LinearWeight& weight, Activation activation, DType out_dtype, GemmSet& gemms) {
  return {.gemm = &gemms.get({.in_features = weight.in_features,
                              .out_features = weight.out_features,
                              .dtype = weight.dtype,
                              .out_dtype = out_dtype,
                              .activation = activation,
                              .bias = weight.bias != nullptr}),
          .weight = &weight};
}

}  // namespace

size_t linear_workspace(int64_t rows, int64_t in_features, int64_t out_features, DType dtype,
                        int threads) {
  Workspace workspace;
  Scratch(workspace, rows, in_features, 0, false, out_features, dtype, threads);
  return workspace.bytes();
}

size_t feed_forward_workspace(int64_t rows, int64_t hidden_size, int64_t intermediate_size,
                              bool gated, DType dtype, int threads) {
  Workspace workspace;
  Scratch(workspace, rows, hidden_size, intermediate_size * (gated ? 2 : 1), gated, hidden_size,
          dtype, threads);
  return workspace.bytes();
}

void linear(const LinearArgs& args, GemmSet& gemms, const Kernels& kernels, ThreadPool& pool) {
  Workspace workspace(args.workspace);
  const Scratch scratch(workspace, args.x.rows(), args.x.columns(), 0, false, args.out.columns(),
                        args.x.dtype, pool.threads());
  const RowsEnd end = {.residual = args.residual, .norm = args.norm, .out = args.out};
  const DType sums = end ? DType::kFloat32 : args.out.dtype;
  Chain{.x = args.x,
        .up = {},
        .last = layer_of(args.weight, args.activation, sums, gemms),
        .gated = false,
        .gate = Activation::kNone,
        .end = end,
        .scratch = scratch,
        .kernels = kernels,
        .pool = pool}
      .run();
}

void feed_forward(const FeedForwardArgs& args, GemmSet& gemms, const Kernels& kernels,
                  ThreadPool& pool) {
  Workspace workspace(args.workspace);
  const Scratch scratch(workspace, args.x.rows(), args.x.columns(), args.up.out_features,
                        args.gated, args.out.columns(), args.x.dtype, pool.threads());
  const RowsEnd end = {.residual = args.residual, .norm = args.norm, .out = args.out};
  const DType sums = end ? DType::kFloat32 : args.out.dtype;
  const Activation inside = args.gated ? Activation::kNone : args.activation;
  Chain{.x = args.x,
        .up = layer_of(args.up, inside, args.x.dtype, gemms),
        .last = layer_of(args.down, Activation::kNone, sums, gemms),
        .gated = args.gated,
        .gate = args.activation,
        .end = end,
        .scratch = scratch,
        .kernels = kernels,
        .pool = pool}
      .run();
}

}  // namespace packhorse::cpu
