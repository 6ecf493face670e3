#include "cpu/lora.h"

#include <algorithm>

#include "cpu/profile.h"
#include "cpu/row_ops.h"

namespace packhorse::cpu {
namespace {

// Work of one task: so many dot products, or so many columns of `out`.
constexpr int64_t kTaskRanks = 16;
constexpr int64_t kTaskColumns = 1024;

int64_t pieces(int64_t count, int64_t size) { return (count + size - 1) / size; }

int32_t rank_of(const int32_t* slots, const int32_t* ranks, int64_t row) {
  return slots[row] < 0 ? 0 : ranks[slots[row]];
}

// Elements from `index` on of a contiguous matrix.
const char* element_at(const TensorView& view, int64_t index) {
  return view.as<char>() + static_cast<size_t>(index) * size_of(view.dtype);
}

bool any_adapted(const int32_t* slots, const int32_t* ranks, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    if (rank_of(slots, ranks, row) > 0) return true;
  }
  return false;
}

void gate_row(const TensorView& x, int64_t row, Activation activation, const TensorView& out,
              const Kernels& kernels) {
  GateRows task;
  task.x = row_at(x, row);
  task.out = row_at(out, row);
  task.x_stride = x.row_stride;
  task.out_stride = out.row_stride;
  task.rows = 1;
  task.columns = out.columns();
  task.activation = activation;
  kernels.gate_rows[index_of(x.dtype)](task);
}

}  // namespace

void add_lora(const LoraArgs& args, const Kernels& kernels, ThreadPool& pool) {
  const LoraLayer& layer = args.layer;
  const int64_t rows = args.x.rows();
  if (!any_adapted(args.slots, layer.ranks, rows)) return;
  const int64_t in = args.x.columns();
  const int64_t out = args.out.columns();
  const int64_t parts = layer.num_parts;
  const int64_t shrinks = parts * pieces(layer.max_rank, kTaskRanks);  // tasks of a row
  pool.parallel_for(rows * shrinks, [&](int64_t task, int) {
    const int64_t row = task / shrinks;
    const int64_t part = task % shrinks % parts;
    const int64_t first = task % shrinks / parts * kTaskRanks;
    const int64_t count =
        std::min<int64_t>(kTaskRanks, rank_of(args.slots, layer.ranks, row) - first);
    if (count <= 0) return;
    const CpuTimer timer(CpuPart::kOther);
    const int64_t from = (args.slots[row] * parts + part) * layer.max_rank + first;
    float* to = args.workspace + row * layer.workspace_columns() + part * layer.max_rank + first;
    kernels.lora_shrink[index_of(args.x.dtype)](
        {row_at(args.x, row), element_at(layer.a, from * in), to, count, in});
  });
  const int64_t expands = pieces(out, kTaskColumns);
  pool.parallel_for(rows * expands, [&](int64_t task, int) {
    const int64_t row = task / expands;
    const int32_t rank = rank_of(args.slots, layer.ranks, row);
    if (rank == 0) return;
    const CpuTimer timer(CpuPart::kOther);
    const int64_t column = task % expands * kTaskColumns;
    LoraExpand expand;
    expand.inner = args.workspace + row * layer.workspace_columns();
    expand.b = element_at(layer.b, int64_t{args.slots[row]} * layer.max_rank * out + column);
    expand.parts = layer.parts != nullptr ? layer.parts + column / kPartColumns : nullptr;
    expand.out = row_at(args.out, row) + static_cast<size_t>(column) * size_of(args.out.dtype);
    expand.b_stride = out;
    expand.columns = std::min(kTaskColumns, out - column);
    expand.rank = rank;
    expand.max_rank = layer.max_rank;
    kernels.lora_expand[index_of(args.x.dtype)](expand);
  });
}

void activate(const ActivateArgs& args, const Kernels& kernels, ThreadPool& pool) {
  pool.parallel_for(args.x.rows(), [&](int64_t row, int) {
    if (rank_of(args.slots, args.ranks, row) == 0) return;
    const CpuTimer timer(CpuPart::kOther);
    if (args.gated) return gate_row(args.x, row, args.activation, args.out, kernels);
    kernels.activate[index_of(args.x.dtype)](
        {row_at(args.x, row), row_at(args.out, row), args.out.columns(), args.activation});
  });
}

void gate(const TensorView& x, Activation activation, const TensorView& out, const Kernels& kernels,
          ThreadPool& pool) {
  pool.parallel_for(x.rows(), [&](int64_t row, int) {
    const CpuTimer timer(CpuPart::kOther);
    gate_row(x, row, activation, out, kernels);
  });
}

}  // namespace packhorse::cpu
