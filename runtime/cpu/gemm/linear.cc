#include "cpu/gemm/linear.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/math.h"
#include "cpu/common/profile.h"
#include "cpu/common/rows.h"
#include "cpu/common/workspace.h"
#include "cpu/gemm/gemm_int8.h"
#include "cpu/gemm/linear_scratch.h"
#include "cpu/gemm/partition.h"

namespace packhorse::cpu {
namespace {

// The number of rows in a task that processes rows of a split block one by one.
constexpr int64_t kTaskRows = 8;
// About as many tasks as a thread gets of a product of few rows: each reads weights that lie one
// after another, and enough of them are left for threads that get more time than others.
constexpr int64_t kTasksPerThread = 8;

// Rows that a first-level cache can hold at the same place. No more are copied if they collide.
constexpr int64_t kWays = 8;

// A block that all threads share.
struct Split {
  Buffers own;
  int64_t first_row, rows;
};

// Returns the memory of a packed weight, without scales.
ReadAhead::Range range_of(const LinearWeight& weight) {
  const int64_t bits = weight.groups.bits != 0 ? weight.groups.bits
                                               : static_cast<int64_t>(8 * size_of(weight.dtype));
  return {static_cast<const char*>(weight.data),
          weight.in_features * weight.out_features * bits / 8};
}

struct Layer {
  const Gemm* gemm = nullptr;
  const LinearWeight* weight = nullptr;

  explicit operator bool() const { return gemm != nullptr; }
};

// One operator: x goes through `up`, if there is one, then through `last` into out.
struct Chain {
  TensorView x;
  Layer up;
  Layer last;
  Activation gate;  // activation of the gate, if `up` is gated
  RowsEnd end;
  const Sizes& sizes;
  const Scratch& scratch;
  GemmSet& gemms;
  const Kernels& kernels;
  ThreadPool& pool;

  void run() const;

 private:
  struct Target {
    void* data;
    int64_t stride;
    int64_t rows;  // rows that may be written
  };

  bool contiguous() const { return x.row_stride == sizes.in_features; }
  Source readable(int64_t first_row, int64_t rows, int worker) const;
  Target target(int64_t first_row, int64_t rows, float* result) const;
  Gemm::Block block(const Layer& layer, int64_t rows, const Source& from, const Target& to,
                    int worker) const;
  Source quantize(const void* from, int64_t stride, int64_t rows, int64_t of_block,
                  const Layer& layer, const Quantized& to) const;
  Source finish_up(std::byte* rows_of_up, int64_t rows, int64_t of_block,
                   const Quantized& to) const;
  void gate_columns(const Buffers& own, int64_t rows, int64_t begin, int64_t columns) const;
  void gate_rows(const std::byte* from, std::byte* to, int64_t to_stride, int64_t rows,
                 int64_t columns) const;
  void run_whole(int64_t first_row, int64_t rows, int worker) const;
};

// Returns rows of x for a product with float weights: in place if the kernel can read them there,
// otherwise copied, once for all panels that a worker takes in turn.
Source Chain::readable(int64_t first_row, int64_t rows, int worker) const {
  const char* from = row_at(x, first_row);
  const Gemm& gemm = *(up ? up : last).gemm;
  const int64_t read = rows <= kBlockRows ? gemm.readable_rows(rows) : rows;
  const bool in_place = sizes.any_rows()
                            ? !sizes.may_copy() || rows <= kWays || !rows_collide(x.row_stride)
                            : rows == read && contiguous();
  if (in_place) return {from, x.row_stride};
  std::byte* to = scratch.copies + worker * scratch.copy_bytes;
  const Source copy = {to, sizes.stride_of(x.columns())};
  if (scratch.copied[worker] == first_row) return copy;
  const size_t bytes = static_cast<size_t>(x.columns()) * size_of(x.dtype);
  const auto to_stride = static_cast<size_t>(copy.stride) * size_of(x.dtype);
  const size_t stride = static_cast<size_t>(x.row_stride) * size_of(x.dtype);
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(to + static_cast<size_t>(i) * to_stride, from + static_cast<size_t>(i) * stride,
                bytes);
  }
  std::memset(to + static_cast<size_t>(rows) * to_stride, 0,
              static_cast<size_t>(read - rows) * to_stride);
  scratch.copied[worker] = first_row;
  return copy;
}

Chain::Target Chain::target(int64_t first_row, int64_t rows, float* result) const {
  if (end) return {result, sizes.out_features, block_count(rows) * kBlockRows};
  return {row_at(end.out, first_row), end.out.row_stride, rows};
}

Gemm::Block Chain::block(const Layer& layer, int64_t rows, const Source& from, const Target& to,
                         int worker) const {
  return {.x = from.data,
          .x_stride = from.stride,
          .x_scales = from.scales,
          .x_offsets = from.offsets,
          .x_sums = from.sums,
          .rows = rows,
          .weight = layer.weight->data,
          .bias = layer.weight->bias,
          .out = to.data,
          .out_stride = to.stride,
          .out_rows = to.rows,
          .tile = scratch.tiles + worker * scratch.tile_bytes,
          .worker = worker};
}

// Quantises rows of the input of a layer, which takes `of_block` rows at once.
Source Chain::quantize(const void* from, int64_t stride, int64_t rows, int64_t of_block,
                       const Layer& layer, const Quantized& to) const {
  const CpuTimer timer(CpuPart::kQuantize);
  if (to.blocks > 0) {
    kernels.quantize_blocks[index_of(sizes.floats)](
        {from, stride, rows, to.features, reinterpret_cast<int8_t*>(to.values), to.scales, to.sums,
         layer.weight->input_order, layer.weight->groups.wide_inputs,
         layer.gemm->takes_bytes_apart(of_block)});
    return to.source();
  }
  kernels.quantize_rows[index_of(sizes.floats)]({from, stride, rows, to.features,
                                                 static_cast<float>(int8_levels()), to.values,
                                                 to.scales, to.offsets});
  return to.source();
}

void Chain::gate_rows(const std::byte* from, std::byte* to, int64_t to_stride, int64_t rows,
                      int64_t columns) const {
  const CpuTimer timer(CpuPart::kOther);
  kernels.gate_rows[index_of(sizes.floats)](
      {from, to, sizes.up_stride(), to_stride, rows, columns, gate});
}

// Completes the output of `up` for some rows after all panels: applies the gate in place, then
// returns the rows in the form that `last` reads, `of_block` at once.
Source Chain::finish_up(std::byte* rows_of_up, int64_t rows, int64_t of_block,
                        const Quantized& to) const {
  const int64_t stride = sizes.inner_stride();
  if (sizes.gated()) gate_rows(rows_of_up, rows_of_up, stride, rows, sizes.inner_features);
  if (sizes.quantized()) return quantize(rows_of_up, stride, rows, of_block, last, to);
  return {rows_of_up, stride};
}

// Applies the gate to some columns of a split block, which are whole pairs of gate and up blocks.
void Chain::gate_columns(const Buffers& own, int64_t rows, int64_t begin, int64_t columns) const {
  gate_rows(own.up + sizes.float_bytes(begin), own.gated + sizes.float_bytes(begin / 2),
            sizes.inner_stride(), rows, columns / 2);
}

void Chain::run_whole(int64_t first_row, int64_t rows, int worker) const {
  const Buffers own = scratch.workers[worker];
  Source from = sizes.quantized() ? quantize(row_at(x, first_row), x.row_stride, rows, rows,
                                             up ? up : last, own.x)
                                  : readable(first_row, rows, worker);
  if (up) {
    up.gemm->run(block(up, rows, from, {own.up, sizes.up_stride(), scratch.part_rows}, worker));
    from = finish_up(own.up, rows, rows, own.inner);
  }
  last.gemm->run(block(last, rows, from, target(first_row, rows, own.result), worker));
  if (end) end.run(own.result, first_row, rows, kernels);
}

void Chain::run() const {
  // Blocks are copied one by one.
  const bool in_blocks = !sizes.any_rows() && sizes.may_copy() && !contiguous();
  const Partition partition(sizes.rows, in_blocks ? kBlockRows : scratch.part_rows,
                            sizes.any_rows(), pool.threads());
  if (sizes.may_copy()) std::fill_n(scratch.copied, pool.threads(), -1);

  // Runs one step for all split blocks, in `tasks` tasks each. The first step also runs the whole
  // parts.
  int64_t parts = partition.parts();
  const auto step = [&](int64_t tasks, auto body) {
    const int64_t whole = std::exchange(parts, 0);
    if (whole + partition.split() == 0) return;
    pool.parallel_for(whole + partition.split() * tasks, [&](int64_t task, int worker) {
      if (task < whole) {
        const int64_t row = partition.first_row(task);
        return run_whole(row, partition.first_row(task + 1) - row, worker);
      }
      const int64_t i = (task - whole) / tasks;
      const int64_t first_row = partition.first_row_of_split(i);
      body(Split{scratch.split[i], first_row, partition.first_row_of_split(i + 1) - first_row},
           (task - whole) % tasks, worker);
    });
  };
  // The rows of the largest split block: where there are few, each task takes fewer columns.
  int64_t most_rows = 0;
  for (int64_t i = 0; i < partition.split(); ++i) {
    most_rows =
        std::max(most_rows, partition.first_row_of_split(i + 1) - partition.first_row_of_split(i));
  }
  const auto step_by_columns = [&](const Layer& layer, auto body) {
    const int64_t all = layer.weight->out_features;
    int64_t width = layer.gemm->columns_at_once(most_rows);
    if (most_rows <= kSkinnyRows) {
      width *= std::max<int64_t>(1, all / (width * kTasksPerThread * pool.threads()));
      pool.read_ahead(gemms.weight_order().after(range_of(*layer.weight)));
    }
    // Tasks are claimed in turns. So each thread gets columns that lie one after another, and finds
    // those that it has prefetched.
    const int64_t tasks = ceil_div(all, width);
    const int64_t streams = sizes.any_rows() || most_rows <= kSkinnyRows ? pool.threads() : 1;
    step(tasks, [&](const Split& split, int64_t task, int worker) {
      const int64_t begin = place_in_stream(task, tasks, streams) * width;
      body(split, begin, std::min(width, all - begin), worker);
    });
  };
  const auto step_by_rows = [&](auto body) {
    step(ceil_div(most_rows, kTaskRows), [&](const Split& split, int64_t task, int) {
      const int64_t row = task * kTaskRows;
      const int64_t rows = std::min(kTaskRows, split.rows - row);
      if (rows > 0) body(split, row, rows);
    });
  };

  const auto input = [&](const Split& split, int worker) {
    return sizes.quantized() ? split.own.x.source() : readable(split.first_row, split.rows, worker);
  };
  if (sizes.quantized()) {
    step_by_rows([&](const Split& split, int64_t row, int64_t rows) {
      quantize(row_at(x, split.first_row + row), x.row_stride, rows, split.rows, up ? up : last,
               split.own.x.from(row));
    });
  }
  if (up) {
    step_by_columns(up, [&](const Split& split, int64_t begin, int64_t columns, int worker) {
      const Target to = {split.own.up, sizes.up_stride(), kBlockRows};
      up.gemm->run_columns(block(up, split.rows, input(split, worker), to, worker), begin, columns);
      if (sizes.gated() && !sizes.quantized()) {
        gate_columns(split.own, split.rows, begin, columns);
      }
    });
    if (sizes.quantized()) {
      step_by_rows([&](const Split& split, int64_t row, int64_t rows) {
        finish_up(split.own.up + sizes.float_bytes(row * sizes.up_stride()), rows, split.rows,
                  split.own.inner.from(row));
      });
    }
  }
  step_by_columns(last, [&](const Split& split, int64_t begin, int64_t columns, int worker) {
    const Source from = !up                 ? input(split, worker)
                        : sizes.quantized() ? split.own.inner.source()
                                            : Source{split.own.gated, sizes.inner_stride()};
    const Target to = target(split.first_row, split.rows, split.own.result);
    last.gemm->run_columns(block(last, split.rows, from, to, worker), begin, columns);
  });
  if (!end) return;
  step_by_rows([&](const Split& split, int64_t row, int64_t rows) {
    end.run(split.own.result + row * sizes.out_features, split.first_row + row, rows, kernels);
  });
}

Layer layer_of(const LinearWeight& weight, DType x, Activation activation, DType out_dtype,
               GemmSet& gemms) {
  return {.gemm = &gemms.get({.in_features = weight.in_features,
                              .out_features = weight.out_features,
                              .dtype = product_dtype(weight.dtype, x),
                              .weight = weight.dtype,
                              .out_dtype = out_dtype,
                              .activation = activation,
                              .bias = weight.bias != nullptr,
                              .groups = weight.groups,
                              .skinny = weight.skinny}),
          .weight = &weight};
}

template <class Args>
size_t workspace_of(const Args& args, int threads) {
  Workspace workspace;
  Scratch(workspace, sizes_of(args), threads);
  return workspace.bytes();
}

}  // namespace

size_t linear_workspace(const LinearArgs& args, int threads) { return workspace_of(args, threads); }
size_t feed_forward_workspace(const FeedForwardArgs& args, int threads) {
  return workspace_of(args, threads);
}

void linear(const LinearArgs& args, GemmSet& gemms, const Kernels& kernels, ThreadPool& pool) {
  const Sizes sizes = sizes_of(args);
  Workspace workspace(args.workspace);
  const Scratch scratch(workspace, sizes, pool.threads());
  const RowsEnd end = {.residual = args.residual, .norm = args.norm, .out = args.out};
  const DType sums = end ? DType::kFloat32 : args.out.dtype;
  Chain{.x = args.x,
        .up = {},
        .last = layer_of(args.weight, args.x.dtype, args.activation, sums, gemms),
        .gate = Activation::kNone,
        .end = end,
        .sizes = sizes,
        .scratch = scratch,
        .gemms = gemms,
        .kernels = kernels,
        .pool = pool}
      .run();
}

void feed_forward(const FeedForwardArgs& args, GemmSet& gemms, const Kernels& kernels,
                  ThreadPool& pool) {
  const Sizes sizes = sizes_of(args);
  Workspace workspace(args.workspace);
  const Scratch scratch(workspace, sizes, pool.threads());
  const RowsEnd end = {.residual = args.residual, .norm = args.norm, .out = args.out};
  const DType sums = end ? DType::kFloat32 : args.out.dtype;
  const Activation inside = args.gated ? Activation::kNone : args.activation;
  Chain{.x = args.x,
        .up = layer_of(args.up, args.x.dtype, inside, args.x.dtype, gemms),
        .last = layer_of(args.down, args.x.dtype, Activation::kNone, sums, gemms),
        .gate = args.activation,
        .end = end,
        .sizes = sizes,
        .scratch = scratch,
        .gemms = gemms,
        .kernels = kernels,
        .pool = pool}
      .run();
}

}  // namespace packhorse::cpu
