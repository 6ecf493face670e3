#include "cpu/linear.h"

#include <algorithm>
#include <cstring>

#include "cpu/row_ops.h"
#include "cpu/workspace.h"

namespace packhorse::cpu {
namespace {

// Rows of one task of the norm after split blocks.
constexpr int64_t kNormRows = 8;

int64_t block_count(int64_t rows) { return (rows + kBlockRows - 1) / kBlockRows; }

// Blocks that are too few to give every thread one more.
int64_t split_count(int64_t rows, int threads) { return block_count(rows) % threads; }

// What a chain keeps between its steps: for each worker, and for the split blocks.
struct Scratch {
  // up_features: 0 for a linear layer, twice the intermediate size for a gated one.
  Scratch(Workspace& workspace, int64_t rows, int64_t in_features, int64_t up_features, bool gated,
          int64_t out_features, DType dtype, int threads)
      : worker_blocks(std::min(blocks_at_once(dtype), block_count(rows))),
        in_bytes(kBlockRows * in_features * size_of(dtype)),
        up_bytes(kBlockRows * up_features * size_of(dtype)),
        result_floats(kBlockRows * out_features),
        tile_bytes(Gemm::tile_bytes(dtype)),
        staged(workspace.take<int64_t>(threads)),
        in(workspace.take(threads * in_bytes)),
        tile(workspace.take(threads * tile_bytes)),
        middle(workspace.take(threads * worker_blocks * up_bytes)),
        result(workspace.take<float>(threads * worker_blocks * result_floats)),
        split_up(workspace.take(split_capacity(rows, threads) * up_bytes)),
        split_middle(gated ? workspace.take(split_capacity(rows, threads) * up_bytes / 2)
                           : split_up),
        split_result(workspace.take<float>(split_capacity(rows, threads) * result_floats)) {}

  // The most blocks that are split in any batch of up to `rows` rows.
  static int64_t split_capacity(int64_t rows, int threads) {
    return std::min<int64_t>(block_count(rows), threads - 1);
  }

  int64_t worker_blocks;  // that a worker takes at once
  int64_t in_bytes, up_bytes, result_floats, tile_bytes;
  int64_t* staged;          // [threads] the block that `in` holds, or -1
  std::byte* in;            // [threads, 64, in_features]: rows that cannot be read in place
  std::byte* tile;          // [threads, 64, panel]
  std::byte* middle;        // [threads, worker_blocks, 64, up_features]
  float* result;            // [threads, worker_blocks, 64, out_features] before residual and norm
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
  TensorView residual;
  NormWeight norm;
  TensorView out;
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

  bool finishes() const { return residual || norm; }
  bool contiguous() const { return x.row_stride == x.columns(); }
  int64_t rows_of(int64_t block, int64_t blocks = 1) const {
    return std::min(blocks * kBlockRows, x.rows() - block * kBlockRows);
  }
  const void* input(int64_t block, int64_t readable, int worker) const;
  Target target(int64_t block, int64_t blocks, float* result) const;
  Gemm::Block call(const Layer& layer, int64_t rows, const void* x, const Target& to,
                   int worker) const;
  void run_whole(int64_t block, int64_t blocks, int worker) const;
  void run_up_panel(int64_t block, const void* from, int64_t panel, int64_t i, int worker) const;
  void finish(int64_t first_row, int64_t rows, const float* result) const;
};

// The rows of a block, in place where they can be read as the kernel wants; else copied, once for
// all panels that a worker takes in a row.
const void* Chain::input(int64_t block, int64_t readable, int worker) const {
  const int64_t rows = rows_of(block);
  const char* from = row_at(x, block * kBlockRows);
  if (rows == readable && contiguous()) return from;
  std::byte* to = scratch.in + worker * scratch.in_bytes;
  if (scratch.staged[worker] == block) return to;
  const size_t bytes = static_cast<size_t>(x.columns()) * size_of(x.dtype);
  const size_t stride = static_cast<size_t>(x.row_stride) * size_of(x.dtype);
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(to + static_cast<size_t>(i) * bytes, from + static_cast<size_t>(i) * stride, bytes);
  }
  std::memset(to + static_cast<size_t>(rows) * bytes, 0,
              static_cast<size_t>(readable - rows) * bytes);
  scratch.staged[worker] = block;
  return to;
}

Chain::Target Chain::target(int64_t block, int64_t blocks, float* result) const {
  if (finishes()) return {result, out.columns(), blocks * kBlockRows};
  return {row_at(out, block * kBlockRows), out.row_stride, rows_of(block, blocks)};
}

Gemm::Block Chain::call(const Layer& layer, int64_t rows, const void* from, const Target& to,
                        int worker) const {
  return {.x = from,
          .rows = rows,
          .weight = layer.weight->data,
          .bias = layer.weight->bias,
          .out = to.data,
          .out_stride = to.stride,
          .out_rows = to.rows,
          .tile = scratch.tile + worker * scratch.tile_bytes,
          .worker = worker};
}

void Chain::finish(int64_t first_row, int64_t rows, const float* result) const {
  NormRows task;
  task.x = result;
  task.x_stride = out.columns();
  if (residual) {
    task.residual = row_at(residual, first_row);
    task.residual_stride = residual.row_stride;
  }
  task.out = row_at(out, first_row);
  task.out_stride = out.row_stride;
  task.rows = rows;
  task.columns = out.columns();
  task.norm = params_of(norm);
  kernels.norm_rows[0][index_of(out.dtype)](task);
}

// Several blocks at once are full ones of contiguous rows.
void Chain::run_whole(int64_t block, int64_t blocks, int worker) const {
  const Layer& first = up ? up : last;
  const int64_t rows = rows_of(block, blocks);
  const void* from = blocks == 1 ? input(block, first.gemm->readable_rows(rows), worker)
                                 : row_at(x, block * kBlockRows);
  if (up) {
    std::byte* middle = scratch.middle + worker * scratch.worker_blocks * scratch.up_bytes;
    const int64_t features = up.weight->out_features;
    const Target to = {middle, features, blocks * kBlockRows};
    up.gemm->run(call(up, rows, from, to, worker));
    if (gated) {
      kernels.gate_rows[index_of(x.dtype)](
          {middle, middle, features, features / 2, rows, features / 2, gate});
    }
    from = middle;
  }
  float* result = scratch.result + worker * scratch.worker_blocks * scratch.result_floats;
  last.gemm->run(call(last, rows, from, target(block, blocks, result), worker));
  if (finishes()) finish(block * kBlockRows, rows, result);
}

// One panel of `up` for the i-th split block, gated where it lies: panels end between pairs.
void Chain::run_up_panel(int64_t block, const void* from, int64_t panel, int64_t i,
                         int worker) const {
  const int64_t rows = rows_of(block);
  const int64_t features = up.weight->out_features;
  std::byte* wide = scratch.split_up + i * scratch.up_bytes;
  up.gemm->run_panel(call(up, rows, from, {wide, features, kBlockRows}, worker), panel);
  if (!gated) return;
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
  const int64_t split = split_count(rows, threads);
  const int64_t whole = block_count(rows) - split;
  std::fill(scratch.staged, scratch.staged + threads, -1);

  // Whole blocks are dealt in equal parts, as many at once as may be; a partial one goes alone.
  const int64_t full = std::min(whole, rows / kBlockRows);
  const int64_t at_once = contiguous() ? scratch.worker_blocks : 1;
  const int64_t per_thread = (full + threads - 1) / threads;
  const int64_t parts = std::min(full, threads * ((per_thread + at_once - 1) / at_once));
  const auto first_of = [&](int64_t part) {
    return part * (full / parts) + std::min(part, full % parts);
  };
  const auto result_of = [&](int64_t i) {
    return scratch.split_result + i * scratch.result_floats;
  };
  const Layer& first = up ? up : last;
  const int64_t panels = first.panels();
  const int64_t whole_tasks = parts + whole - full;
  pool.parallel_for(whole_tasks + split * panels, [&](int64_t task, int worker) {
    if (task < parts) return run_whole(first_of(task), first_of(task + 1) - first_of(task), worker);
    if (task < whole_tasks) return run_whole(full, 1, worker);
    const int64_t i = (task - whole_tasks) / panels;
    const int64_t block = whole + i;
    const int64_t panel = (task - whole_tasks) % panels;
    const int64_t block_rows = rows_of(block);
    const void* from = input(block, first.gemm->readable_rows(block_rows), worker);
    if (up) return run_up_panel(block, from, panel, i, worker);
    const Target to = target(block, 1, result_of(i));
    last.gemm->run_panel(call(last, block_rows, from, to, worker), panel);
  });
  if (split == 0) return;
  if (up) {
    const int64_t last_panels = last.panels();
    const int64_t middle_bytes = scratch.up_bytes / (gated ? 2 : 1);
    pool.parallel_for(split * last_panels, [&](int64_t task, int worker) {
      const int64_t i = task / last_panels;
      const int64_t block = whole + i;
      const Target to = target(block, 1, result_of(i));
      const std::byte* from = scratch.split_middle + i * middle_bytes;
      last.gemm->run_panel(call(last, rows_of(block), from, to, worker), task % last_panels);
    });
  }
  if (!finishes()) return;
  const int64_t first_row = whole * kBlockRows;
  pool.parallel_for((rows - first_row + kNormRows - 1) / kNormRows, [&](int64_t task, int) {
    const int64_t row = first_row + task * kNormRows;
    finish(row, std::min(kNormRows, rows - row),
           scratch.split_result + (row - first_row) * out.columns());
  });
}

Layer layer_of(const LinearWeight& weight, Activation activation, DType out_dtype, GemmSet& gemms) {
  const GemmShape shape = {weight.in_features, weight.out_features, weight.dtype,
                           out_dtype,          activation,          weight.bias != nullptr};
  return {&gemms.get(shape), &weight};
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
  const bool finishes = args.residual || args.norm;
  const DType sums = finishes ? DType::kFloat32 : args.out.dtype;
  Chain{args.x,
        {},
        layer_of(args.weight, args.activation, sums, gemms),
        false,
        Activation::kNone,
        args.residual,
        args.norm,
        args.out,
        scratch,
        kernels,
        pool}
      .run();
}

void feed_forward(const FeedForwardArgs& args, GemmSet& gemms, const Kernels& kernels,
                  ThreadPool& pool) {
  Workspace workspace(args.workspace);
  const Scratch scratch(workspace, args.x.rows(), args.x.columns(), args.up.out_features,
                        args.gated, args.out.columns(), args.x.dtype, pool.threads());
  const bool finishes = args.residual || args.norm;
  const DType sums = finishes ? DType::kFloat32 : args.out.dtype;
  Chain{args.x,
        layer_of(args.up, args.gated ? Activation::kNone : args.activation, args.x.dtype, gemms),
        layer_of(args.down, Activation::kNone, sums, gemms),
        args.gated,
        args.activation,
        args.residual,
        args.norm,
        args.out,
        scratch,
        kernels,
        pool}
      .run();
}

}  // namespace packhorse::cpu
